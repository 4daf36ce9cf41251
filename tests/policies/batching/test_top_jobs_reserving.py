"""The top jobs with room set aside by predicted length."""

from __future__ import annotations

from typing import Any

import pytest

from headway.core.job import Job, JobState
from headway.errors import ConfigError
from headway.policies.batching.top_jobs import TopJobs
from headway.policies.order.governed import Governed
from tests.policies.batching.scene import Scene
from tests.policies.contract import jobs_held_by
from tests.policies.order.per_token import exactly
from tests.strategies import ids, make_job


def expecting(name: str, tokens: float) -> Job:
    """A job that waits with 10 prompt tokens, and holds 10 + 2 of them for the answer to come."""
    return make_job(name, limit=999, predicted_length=exactly(tokens))


def reserving(order: Any = None) -> Scene:
    """Sixteen blocks of 4 tokens, all of them free, for whoever has room to its end."""
    scene = Scene(TopJobs(reserve_confidence=0.5), total_blocks=16, free_blocks=16)
    scene.order = order or scene.order
    return scene


def test_who_starts_has_room_to_its_end() -> None:
    # 12 tokens held each. a and b bring 16: 56 of 64. c would bring it to 84 while they last.
    a, b, c = (expecting(name, 16) for name in "abc")
    plan = reserving().wait(a, b, c).plan()
    assert ids(plan.admit) == ["a", "b"]
    # All three fit their prompts: without a reservation they start.
    assert ids(Scene(TopJobs(), total_blocks=16, free_blocks=16).wait(a, b, c).plan().admit) == [
        "a",
        "b",
        "c",
    ]


def test_nobody_starts_past_one_that_has_no_room() -> None:
    a, huge, small = expecting("a", 16), expecting("huge", 60), expecting("small", 1)
    assert ids(reserving().wait(a, huge, small).plan().admit) == ["a"]


def test_one_alone_starts_though_it_outgrows_everything() -> None:
    assert ids(reserving().wait(expecting("huge", 600)).plan().admit) == ["huge"]


def test_one_that_is_not_ready_keeps_nobody_out_of_an_empty_engine() -> None:
    waits, ready = expecting("waits", 16), expecting("ready", 16)
    plan = reserving().wait(waits, ready).admissible(lambda job: job is ready).plan()
    assert plan.admit[0] is ready


def test_while_predictions_are_not_trusted_nothing_is_set_aside() -> None:
    jobs = [expecting(name, 16) for name in "abc"]
    for trusts, expected in ((False, ["a", "b", "c"]), (True, ["a", "b"])):
        scene = reserving(Governed(trusted_at_first=trusts)).wait(*jobs)
        assert ids(scene.plan().admit) == expected


def test_what_is_known_of_residents_follows_them() -> None:
    scene = reserving()
    job = expecting("a", 16)
    plan = scene.wait(job).plan()
    job.state = JobState.RESIDENT
    scene.admit(plan, job)
    assert jobs_held_by(scene.batching) == {job}


def test_room_is_set_aside_for_the_limit_or_by_prediction() -> None:
    with pytest.raises(
        ConfigError, match="reserve and reserve_confidence are both given; accepted: one of them"
    ):
        TopJobs(reserve=True, reserve_confidence=0.5)
