from __future__ import annotations

from typing import Any

import pytest

from headway.core.job import Job, JobState
from headway.errors import ConfigError
from headway.policies.batching.reserved import RequestLevel
from headway.policies.presets import find_preset
from tests.policies.batching.scene import Scene
from tests.policies.contract import Arrival, Workload, drive, from_preset
from tests.policies.instance import small_engine
from tests.strategies import ids, make_job


def start(scene: Scene, *jobs: Job) -> None:
    """Plan, and let these jobs become resident."""
    plan = scene.plan()
    for job in jobs:
        scene.order.remove(job)
        job.state = JobState.RESIDENT
    scene.admit(plan, *jobs)
    scene.view.residents = [*scene.view.residents, *jobs]


def end(scene: Scene, *jobs: Job) -> None:
    """Let residents end."""
    for job in jobs:
        job.state = JobState.ENDED
    scene.view.residents = [job for job in scene.view.residents if job not in jobs]


def four() -> list[Job]:
    """Jobs a to d, waiting."""
    return [make_job(name) for name in "abcd"]


@pytest.mark.parametrize(
    ("settings", "sizes", "expected"),
    [
        ({}, {"max_run": 3}, ["a", "b", "c"]),
        ({"batch_size": 2}, {}, ["a", "b"]),
        ({"batch_size": 99}, {"max_run": 3, "max_resident": 2}, ["a", "b"]),
    ],
)
def test_a_batch_is_as_many_as_asked_for_and_seated(
    settings: dict[str, Any], sizes: dict[str, Any], expected: list[str]
) -> None:
    plan = Scene(RequestLevel(**settings), **sizes).wait(*four()).plan()
    assert ids(plan.admit) == expected
    assert (plan.token_budget, plan.whole_prompts) == (64, False)


def test_reserve_cuts_the_batch_to_what_fits_with_every_output_at_its_limit() -> None:
    # Each may reach 10 + 10 tokens: 5 blocks of 4. In 14 blocks there is room for two of them.
    assert ids(Scene(RequestLevel(), total_blocks=14).wait(*four()).plan().admit) == ["a", "b"]
    unreserved = RequestLevel(reserve=False)
    assert ids(Scene(unreserved, total_blocks=14).wait(*four()).plan().admit) == ["a", "b", "c", "d"]


def test_the_next_batch_starts_when_the_last_member_has_ended() -> None:
    a, b, c, d = four()
    scene = Scene(RequestLevel(batch_size=2)).wait(a, b, c, d)
    start(scene, a, b)
    plan = scene.plan()
    assert (ids(plan.run), plan.admit) == (["a", "b"], [])
    end(scene, a)
    plan = scene.plan()
    assert (ids(plan.run), plan.admit) == (["b"], [])
    end(scene, b)
    assert ids(scene.plan().admit) == ["c", "d"]


def test_members_that_did_not_fit_the_first_step_start_later() -> None:
    a, b, c, _ = four()
    scene = Scene(RequestLevel(batch_size=3)).wait(a, b, c, make_job("late"))
    start(scene, a)
    plan = scene.plan()
    assert (ids(plan.run), ids(plan.admit)) == (["a"], ["b", "c"])


def test_a_batch_nobody_of_which_could_start_is_not_one_yet() -> None:
    a, b, c, d = four()
    scene = Scene(RequestLevel(batch_size=2)).wait(a, b, c, d)
    scene.admit(scene.plan())
    scene.order.remove(a)
    a.state = JobState.ENDED
    assert ids(scene.plan().admit) == ["b", "c"]


@pytest.mark.parametrize("state", [JobState.WAITING, JobState.SWAPPED], ids=["dropped", "swapped"])
def test_a_preempted_member_re_enters_and_the_batch_stays_the_same(state: JobState) -> None:
    a, b, c, d = four()
    scene = Scene(RequestLevel(batch_size=2, reserve=False)).wait(a, b, c, d)
    start(scene, a, b)
    b.state, b.num_preemptions = state, 1
    scene.order.add(b)
    scene.view.residents = [a]
    assert ids(scene.plan().admit) == ["b"]
    start(scene, b)
    end(scene, b)
    assert ids(scene.plan().admit) == []
    end(scene, a)
    assert ids(scene.plan().admit) == ["c", "d"]


def test_a_member_that_leaves_is_not_admitted_and_ends_its_membership() -> None:
    a, b, c, d = four()
    scene = Scene(RequestLevel(batch_size=2)).wait(a, b, c, d)
    start(scene, a)
    assert ids(scene.plan(leaving=(b,)).admit) == []
    scene.order.remove(b)
    end(scene, a, b)
    assert ids(scene.plan().admit) == ["c", "d"]


@pytest.mark.parametrize("batch_size", [0, -2])
def test_a_batch_of_nobody_is_refused(batch_size: int) -> None:
    with pytest.raises(ConfigError, match=f"batch_size is {batch_size}; accepted: 1 or more jobs"):
        RequestLevel(batch_size)


def test_a_run_by_hand() -> None:
    # Batches of two. a brings 1 token, b 3: c waits for b. Prompts of 2 take one step, which brings the first
    # token. Step 0: a, b. Steps 1 and 2: b alone, two more tokens. Step 3: c starts and ends with its one.
    arrivals = tuple(
        Arrival(id=id_, at_step=0, prompt=2, output=output, limit=3)
        for id_, output in (("a", 1), ("b", 3), ("c", 1))
    )
    workload = Workload(arrivals, small_engine())
    preset = find_preset("static", batching="request-level:batch_size=2")
    run = drive(from_preset(preset)(workload), workload)
    assert run.ended == [{"a"}, set(), {"b"}, {"c"}]
