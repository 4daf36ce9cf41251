"""Which jobs rank before those in time, and how much of the engine they get."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import Job
from headway.core.plan import StepOutcome, StepPlan
from headway.policies.order.overdue import LEAST_SHARE, Overdue, overdue_share
from tests.strategies import UNTIMED, ids, make_job


def nobody(jobs: Sequence[Job], now_s: float) -> list[Job]:
    """A ranking in which all jobs are late."""
    return []


def overdue(*jobs: Job, patience_s: float = 60.0) -> Overdue:
    """The order with these jobs."""
    found = Overdue(patience_s)
    for job in jobs:
        found.add(job)
    return found


def step(rank: Overdue, *jobs: Job, at_s: float) -> None:
    """A step of these jobs."""
    rank.observe(
        StepOutcome(now_s=at_s, plan=StepPlan(), tokens=dict.fromkeys(jobs, 1)), rank.of(at_s, nobody)
    )


def test_the_oldest_that_is_not_in_time_once_it_is_old_enough() -> None:
    old, late = make_job("old", arrival_s=0.0), make_job("late", arrival_s=1.0)
    rank = overdue(late, old)
    assert rank.of(59.0, nobody) == []
    assert ids(rank.of(60.0, nobody)) == ["old"]
    assert rank.of(60.0, lambda jobs, now_s: [old]) == []
    assert ids(rank.of(61.0, lambda jobs, now_s: [old])) == ["late"]


def test_of_jobs_that_came_together_the_id_decides_in_whatever_order_they_were_added() -> None:
    one, other = make_job("a"), make_job("b")
    assert ids(overdue(one, other).of(60.0, nobody)) == ids(overdue(other, one).of(60.0, nobody)) == ["a"]


def test_what_an_overdue_job_has_had_is_owed_back_before_the_next() -> None:
    first, second = make_job("a"), make_job("b")
    rank = overdue(first, second)
    step(rank, at_s=100.0)  # it is overdue, but did not run yet
    step(rank, first, at_s=102.0)
    step(rank, first, at_s=105.0)
    assert ids(rank.of(108.0, nobody)) == ["a"]
    rank.end(first)
    step(rank, at_s=108.0)
    # From 102 to 108 it had all of the engine: that is a hundredth of the time until 702.
    step(rank, at_s=701.0)
    assert rank.of(701.0, nobody) == []
    step(rank, at_s=703.0)
    assert ids(rank.of(703.0, nobody)) == ["b"]


def test_a_job_is_charged_its_part_of_the_step_so_that_several_run_at_once() -> None:
    # Of 200 jobs in each step, a hundredth of the engine is two.
    jobs = [make_job(f"{number:03}", arrival_s=number / 10) for number in range(220)]
    rank = overdue(*jobs, patience_s=0.0)
    for second in range(100, 160):
        chosen = rank.of(float(second), nobody)
        others = [job for job in reversed(jobs) if job not in chosen]
        step(rank, *chosen, *others[: 200 - len(chosen)], at_s=float(second))
    assert ids(rank.of(160.0, nobody))[:2] == ["000", "001"]
    assert 2 <= len(rank.of(160.0, nobody)) <= 3


def test_jobs_in_time_lose_a_hundredth_only() -> None:
    late, urgent = make_job("late"), make_job("urgent", arrival_s=1.0)
    rank = overdue(late, patience_s=0.0)
    rank.add(urgent)
    ran_s = 0

    def urgent_is_in_time(jobs: Sequence[Job], now_s: float) -> list[Job]:
        return [job for job in jobs if job is urgent]

    for second in range(1000):
        chosen = rank.of(float(second), urgent_is_in_time)
        runs = chosen or [urgent]
        rank.observe(StepOutcome(now_s=float(second), plan=StepPlan(), tokens=dict.fromkeys(runs, 1)), chosen)
        if chosen:  # an answer of one step; another late one is there at once
            ran_s += 1
            rank.end(late)
            late = make_job(f"late {second}")
            rank.add(late)
    assert 10 <= ran_s <= 12


def test_one_that_can_be_in_time_after_all_is_overdue_no_longer() -> None:
    first, second = make_job("a"), make_job("b")
    rank = overdue(first, second)
    step(rank, first, at_s=100.0)

    def first_is(jobs: Sequence[Job], now_s: float) -> list[Job]:
        return [first]

    assert rank.of(101.0, first_is) == []
    rank.observe(StepOutcome(now_s=102.0, plan=StepPlan(), tokens={first: 1}), rank.of(102.0, first_is))
    # It had the engine from 100 to 102: a hundredth of the time until 300.
    step(rank, first, at_s=102.1)
    assert rank.of(299.0, nobody) == []
    assert ids(rank.of(301.0, nobody)) == ["b"]


def test_one_that_runs_needs_no_rank_and_the_one_chosen_keeps_it_until_its_end() -> None:
    oldest, chosen = make_job("a"), make_job("b", arrival_s=1.0)
    rank = overdue(oldest, chosen, patience_s=10.0)
    step(rank, oldest, at_s=5.0)
    assert ids(rank.of(20.0, nobody)) == ["b"]
    # `a` makes way for it, and cannot take its place back.
    step(rank, at_s=20.0)
    step(rank, at_s=21.0)
    assert ids(rank.of(22.0, nobody)) == ["b"]


def test_the_next_waits_until_the_one_before_runs() -> None:
    jobs = [make_job(name) for name in "abc"]
    rank = overdue(*jobs)
    step(rank, at_s=100.0)
    step(rank, at_s=101.0)
    assert ids(rank.of(102.0, nobody)) == ["a"]


def test_one_that_ends_without_the_rank_changes_nothing() -> None:
    first, second, third = make_job("a"), make_job("b"), make_job("c")
    rank = overdue(first, second, third)
    rank.end(first)
    assert ids(rank.of(60.0, nobody)) == ["b"]
    step(rank, second, at_s=60.0)
    rank.end(third)
    assert ids(rank.of(61.0, nobody)) == ["b"]


@UNTIMED
@given(takes_s=st.lists(st.integers(1, 5), min_size=1, max_size=5), newcomers=st.booleans())
def test_the_nth_is_served_when_those_before_it_have_had_their_part(
    takes_s: list[int], newcomers: bool
) -> None:
    # All late from the start, a step a second; whoever has the rank runs for so many of them.
    jobs = [make_job(f"{number:02}") for number in range(len(takes_s))]
    rank = overdue(*jobs, patience_s=0.0)
    left = dict(zip(jobs, takes_s, strict=True))
    served_s: dict[Job, int] = {}
    for now_s in range(4 * len(jobs) + 101 * sum(takes_s)):
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
        # A step or two each is lost to whole seconds.
        assert served_s[job] <= had_s / LEAST_SHARE + seconds + 2 * len(jobs)
        had_s += seconds


@pytest.mark.parametrize(("tail", "share"), [(0.0, 0.01), (0.5, 0.01), (0.75, 0.01 * 30**0.5), (1.0, 0.3)])
def test_the_dial_gives_overdue_jobs_more_beyond_its_middle(tail: float, share: float) -> None:
    assert overdue_share(tail) == pytest.approx(share)


def test_a_larger_share_makes_the_next_overdue_sooner() -> None:
    first, second = make_job("a"), make_job("b")
    rank = Overdue(0.0, 0.3)
    rank.add(first)
    rank.add(second)
    for at_s in (0.0, 1.0, 2.0):
        step(rank, first, at_s=at_s)
    rank.end(first)
    step(rank, at_s=3.0)
    # It had the engine from 0 to 3: three tenths of the time until 10.
    assert rank.of(9.9, nobody) == []
    assert ids(rank.of(10.1, nobody)) == ["b"]
