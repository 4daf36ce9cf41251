"""Blocks of 4 tokens that late newcomers leave to those who can be in time."""

from __future__ import annotations

import pytest

from headway.core.job import Job
from headway.core.slo import Slo
from headway.errors import ConfigError
from headway.policies.batching.top_jobs import TopJobs
from headway.policies.order.on_time import OnTime
from tests.policies.batching.scene import Scene
from tests.policies.order.per_token import PerToken
from tests.strategies import decoding, ids, make_job

IN_TIME, LATE = Slo(ttft_s=900.0, tbt_s=100.0), Slo(ttft_s=0.5, tbt_s=100.0)


def scene(resident: Job, free_blocks: int, *, headroom: float = 0.5, overdue_after_s: float = 60.0) -> Scene:
    """A resident, and so many blocks that are free; a token of a prompt takes a second."""
    found = Scene(
        TopJobs(headroom=headroom), residents=[resident], free_blocks=free_blocks, total_blocks=40, now_s=50.0
    )
    found.order = order = OnTime(PerToken(), patience_s=overdue_after_s)  # type: ignore[assignment]
    order.add(resident)
    order.remove(resident)
    return found


def holding(tokens: int, slo: Slo) -> Job:
    """A resident that holds so many tokens and brings more at any pace."""
    return decoding("runs", prompt=tokens - 1, output=1, limit=999, first_token_s=1.0, slo=slo)


def test_half_of_what_is_held_in_time_stays_free_of_late_ones() -> None:
    # 40 tokens held in time are 10 blocks: 5 stay free. A late job of 8 tokens takes 2.
    jobs = make_job("a", prompt=8, slo=LATE), make_job("b", prompt=8, slo=LATE)
    for free_blocks, starting in ((6, []), (7, ["a"]), (8, ["a"]), (9, ["a", "b"])):
        found = scene(holding(40, IN_TIME), free_blocks).wait(*jobs).plan()
        assert ids(found.admit) == starting, free_blocks


def test_who_has_no_target_is_not_late() -> None:
    assert ids(scene(holding(40, IN_TIME), 2).wait(make_job("patient", prompt=8)).plan().admit) == ["patient"]


def test_who_is_in_time_takes_what_is_free_and_leaves_the_less_to_others() -> None:
    # 5 of 9 blocks stay free of others; 3 go to a newcomer in time, so a late one of 2 has no room.
    late, urgent = make_job("late", prompt=8, slo=LATE), make_job("urgent", prompt=12, slo=IN_TIME)
    assert ids(scene(holding(40, IN_TIME), 9).wait(late, urgent).plan().admit) == ["urgent"]
    assert ids(scene(holding(40, IN_TIME), 10).wait(late, urgent).plan().admit) == ["urgent", "late"]


def test_nothing_stays_free_while_nobody_resident_is_in_time() -> None:
    late = make_job("late", prompt=8, slo=LATE)
    assert ids(scene(holding(40, LATE), 2).wait(late).plan().admit) == ["late"]


def test_nor_from_the_one_that_has_waited_too_long() -> None:
    jobs = make_job("old", prompt=8, slo=LATE), make_job("late", prompt=8, slo=LATE, arrival_s=1.0)
    assert ids(scene(holding(40, IN_TIME), 4, overdue_after_s=50.0).wait(*jobs).plan().admit) == ["old"]


def test_without_headroom_whoever_fits_starts() -> None:
    late = make_job("late", prompt=8, slo=LATE)
    assert ids(scene(holding(40, IN_TIME), 2, headroom=0.0).wait(late).plan().admit) == ["late"]


@pytest.mark.parametrize("headroom", [-0.5, float("nan")])
def test_a_share_that_is_none_is_refused(headroom: float) -> None:
    with pytest.raises(ConfigError, match=r"headroom is .*; accepted: 0 or more"):
        TopJobs(headroom=headroom)
