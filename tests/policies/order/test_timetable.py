"""By hand: a token of a prompt takes a second, a decode shares one with seven others (`PerToken`)."""

from __future__ import annotations

from math import inf

import pytest

from headway.core.job import Job
from headway.core.plan import StepOutcome, StepPlan
from headway.core.slo import Slo
from headway.policies.order.remaining_work import RemainingWork
from headway.policies.order.timetable import Timetable
from tests.policies.order.per_token import PerToken, exactly
from tests.strategies import ids, make_job


def timetable(*jobs: Job) -> Timetable:
    """Of jobs that wait."""
    work = RemainingWork(PerToken())
    times = Timetable(work, PerToken(), prompt_share=0.5)
    for job in jobs:
        work.estimate(job)
        times.add(job)
    return times


def due(id_: str, ttft_s: float, prompt: int = 2) -> Job:
    """A job with a target for its first token alone."""
    return make_job(id_, prompt=prompt, slo=Slo(ttft_s=ttft_s))


def test_those_that_wait_and_can_be_in_time_by_latest_start() -> None:
    times = timetable(due("late", 3.0), due("last", 9.0), due("first", 7.0), make_job("no target"))
    assert ids(times.waiting_in_time(9, 2.0)) == ["first", "last"]
    assert ids(times.waiting_in_time(1, 2.0)) == ["first"]
    assert ids(times.waiting_in_time(9, 6.0)) == ["last"]


def test_what_is_asked_of_a_single_one() -> None:
    job, other = due("a", 9.0), make_job("no target")
    times = timetable(job, other)
    assert [times.latest_start_s(one) for one in (job, other)] == [7.0, inf]
    assert times.in_time([job, other], 7.0) == [job]
    assert times.in_time([job, other], 7.1) == []
    assert times.waits(job)
    times.remove(job)
    assert not times.waits(job)
    assert times.latest_start_s(job) == 7.0


def test_a_prompt_is_due_when_its_first_token_is_and_takes_twice_its_time() -> None:
    [one] = timetable(job := due("a", 9.0)).candidates([job])
    assert (one.due_s, one.service_s) == (9.0, 4.0)


def test_it_is_true_while_anybody_has_a_target() -> None:
    job, other = due("a", 9.0), make_job("no target")
    times = timetable(other)
    assert not times
    times = timetable(job, other)
    assert times
    for one in (job, other):
        times.remove(one)
        times.end(one)
    assert not times


def test_each_token_that_has_come_leaves_one_less_to_come() -> None:
    # Steps of a second: ten tokens due at 100 s have to be begun by 90, and the last four by 96.
    job = make_job("a", prompt=1, slo=Slo(deadline_s=100.0), limit=10, predicted_length=exactly(10))
    times = timetable(job)
    for at_s in (0.0, 1.0):
        times.observe(StepOutcome(now_s=at_s, plan=StepPlan(), tokens={job: 1}))
    times.renew([job])
    begins_s = times.latest_start_s(job)
    job.num_output_tokens = 6
    assert times.latest_start_s(job) == pytest.approx(begins_s + 6.0)
