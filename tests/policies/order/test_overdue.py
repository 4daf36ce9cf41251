"""Who ranks before those in time, and for how much of the time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import Job
from headway.core.plan import StepOutcome, StepPlan
from headway.errors import ConfigError
from headway.policies.order.overdue import Overdue
from tests.strategies import UNTIMED, ids, make_job


def nobody(jobs: Sequence[Job], now_s: float) -> list[Job]:
    """All are late."""
    return []


def overdue(*jobs: Job, patience_s: float = 60.0, share: float = 0.25) -> Overdue:
    """With these jobs."""
    found = Overdue(patience_s, share)
    for job in jobs:
        found.add(job)
    return found


def step(rank: Overdue, *jobs: Job, at_s: float) -> None:
    """A step of these jobs."""
    rank.observe(StepOutcome(now_s=at_s, plan=StepPlan(), tokens=dict.fromkeys(jobs, 1)), nobody)


def test_the_oldest_that_is_not_in_time_once_it_is_old_enough() -> None:
    old, late = make_job("old", arrival_s=0.0), make_job("late", arrival_s=1.0)
    rank = overdue(late, old)
    assert rank.of(59.0, nobody) == []
    assert ids(rank.of(60.0, nobody)) == ["old"]
    assert rank.of(60.0, lambda jobs, now_s: [old]) == []
    assert ids(rank.of(61.0, lambda jobs, now_s: [old])) == ["late"]


def test_who_had_the_rank_is_followed_by_nobody_for_three_times_as_long() -> None:
    first, second = make_job("a"), make_job("b")
    rank = overdue(first, second)
    step(rank, at_s=100.0)  # it has the rank, but did not run yet
    step(rank, first, at_s=102.0)
    step(rank, first, at_s=108.0)
    assert ids(rank.of(108.0, nobody)) == ["a"]
    rank.end(first)
    # From 102 to 108: a quarter of the time until 126.
    assert rank.of(125.9, nobody) == []
    assert ids(rank.of(126.0, nobody)) == ["b"]


def test_one_that_can_be_in_time_after_all_gives_the_rank_back() -> None:
    first, second = make_job("a"), make_job("b")
    rank = overdue(first, second)
    step(rank, first, at_s=100.0)
    assert rank.of(101.0, lambda jobs, now_s: [first]) == []
    tokens = dict.fromkeys([first], 1)
    rank.observe(StepOutcome(now_s=102.0, plan=StepPlan(), tokens=tokens), lambda jobs, now_s: [first])
    # It had the rank from 100 to 102, a quarter of the time until 108.
    assert rank.of(107.9, nobody) == []
    assert ids(rank.of(108.0, nobody)) == ["b"]


def test_one_that_runs_needs_no_rank_and_the_one_chosen_keeps_it_until_its_end() -> None:
    oldest, chosen = make_job("a"), make_job("b", arrival_s=1.0)
    rank = overdue(oldest, chosen)
    step(rank, oldest, at_s=100.0)
    assert ids(rank.of(101.0, nobody)) == ["a"]  # it had the rank when it began to run
    rank = overdue(oldest, chosen, patience_s=10.0)
    step(rank, oldest, at_s=5.0)
    assert ids(rank.of(20.0, nobody)) == ["b"]
    # `a` makes way for it, and cannot take its place back.
    step(rank, at_s=20.0)
    step(rank, at_s=21.0)
    assert ids(rank.of(22.0, nobody)) == ["b"]


def test_one_that_ends_without_the_rank_changes_nothing() -> None:
    first, second, third = make_job("a"), make_job("b"), make_job("c")
    rank = overdue(first, second, third)
    rank.end(first)
    assert ids(rank.of(60.0, nobody)) == ["b"]
    step(rank, second, at_s=60.0)
    rank.end(third)
    assert ids(rank.of(61.0, nobody)) == ["b"]


@UNTIMED
@given(
    takes_s=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    share=st.sampled_from([0.1, 0.25, 0.5, 1.0]),
    newcomers=st.booleans(),
)
def test_the_nth_is_served_when_those_before_it_have_had_their_part(
    takes_s: list[int], share: float, newcomers: bool
) -> None:
    # All late from the start, a step a second; whoever has the rank runs for so many of them.
    jobs = [make_job(f"{number:02}") for number in range(len(takes_s))]
    rank = overdue(*jobs, patience_s=0.0, share=share)
    left = dict(zip(jobs, takes_s, strict=True))
    served_s: dict[Job, int] = {}
    for now_s in range(2 * len(jobs) + 11 * sum(takes_s)):
        if newcomers and now_s < 50:
            rank.add(make_job(f"n{now_s}", arrival_s=now_s + 1.0))
        chosen = [job for job in rank.of(float(now_s), nobody) if job in left]
        step(rank, *chosen, at_s=float(now_s))
        for job in chosen:
            left[job] -= 1
            if not left[job]:
                served_s[job] = now_s
                rank.end(job)
                del left[job]
    had_s = 0
    for job, seconds in zip(jobs, takes_s, strict=True):
        # A step each is lost to whole seconds.
        assert served_s[job] <= had_s / share + seconds + len(jobs)
        had_s += seconds


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, float("nan")])
def test_a_share_of_no_time_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match=r"overdue_share is .*; accepted: a share of the time above 0"):
        Overdue(60.0, share)
