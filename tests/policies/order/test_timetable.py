"""By hand: a token of a prompt takes a second, a decode shares one with seven others (`PerToken`)."""

from __future__ import annotations

from math import inf

import pytest

from headway.core.batch_shape import BatchShape
from headway.core.job import Job
from headway.core.plan import StepOutcome, StepPlan
from headway.core.slo import Slo
from headway.policies.order.remaining_work import RemainingWork
from headway.policies.order.timetable import Timetable
from tests.policies.order.per_token import PerToken, exactly
from tests.strategies import decoding, ids, make_job


def timetable(*jobs: Job, usual: int | None = None) -> Timetable:
    """Of jobs that wait, where answers have the `usual` length."""
    work = RemainingWork(PerToken())
    if usual is not None:
        work.learn(decoding("ended", output=usual))
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


def test_a_load_comes_before_the_prompt_and_is_no_service() -> None:
    class Loading(PerToken):
        def load_s(self, num_tokens: int) -> float:
            return 3.0 * num_tokens

        def step_s(self, shape: BatchShape) -> float:
            return float(shape.num_tokens)

    job = due("a", 20.0, prompt=4)
    job.num_stored_tokens = 2
    work = RemainingWork(Loading())
    times = Timetable(work, Loading(), prompt_share=0.5)
    work.estimate(job)
    times.add(job)
    assert times.latest_start_s(job) == 20.0 - 2.0 - 6.0
    [one] = times.candidates([job])
    assert (one.due_s, one.service_s) == (20.0, 4.0)


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
    times.remove(job)
    begins_s = times.latest_start_s(job)
    job.num_output_tokens = job.num_computed_tokens = 6
    assert times.latest_start_s(job) == pytest.approx(begins_s + 6.0)


def test_who_holds_memory_may_catch_up_and_who_waits_may_not() -> None:
    # Two tokens are out, a second apart is the target: the next is due at 2 s, and takes half a second. The usual
    # answer has forty more, each of which makes up half a second.
    job = decoding("a", output=2, limit=99, first_token_s=0.0, slo=Slo(tbt_s=1.0))
    times = timetable(job, usual=42)
    for at_s in (0.0, 0.5):
        times.observe(StepOutcome(now_s=at_s, plan=StepPlan(), tokens={job: 1}))
    times.renew([job])
    assert times.latest_start_s(job) == 1.5
    assert times.in_time([job], 1.5) == [job]
    assert times.in_time([job], 1.6) == []
    times.remove(job)
    assert times.latest_start_s(job) == 1.5
    assert times.in_time([job], 11.0) == [job]
    assert times.in_time([job], 41.0) == []


def test_a_stream_far_ahead_of_its_pace_is_in_no_hurry_while_it_waits() -> None:
    # Two tokens are out, a thousand seconds apart is the target, and steps take one: the next has to be begun by 1999
    # s, and 512 steps before that it is in a hurry.
    job = decoding("a", output=2, limit=99, first_token_s=0.0, slo=Slo(tbt_s=1000.0))
    times = timetable(job)
    for at_s in (0.0, 1.0):
        times.observe(StepOutcome(now_s=at_s, plan=StepPlan(), tokens={job: 1}))
    times.renew([job])
    assert times.hurried([job], 1486.9) == []
    assert times.hurried([job], 1487.0) == times.candidates([job])
    times.remove(job)
    assert times.hurried([job], 0.0) == times.candidates([job])


def test_who_waits_for_its_first_token_is_always_in_a_hurry() -> None:
    times = timetable(job := due("a", 604800.0))
    assert times.hurried([job], 0.0) == times.candidates([job])


def test_the_work_of_a_stream_puts_off_its_turn_sixteen_times() -> None:
    # A token takes an eighth of a second: ten to come are 1.25 s of work.
    job = decoding(
        "a", output=2, limit=12, first_token_s=0.0, slo=Slo(tbt_s=9.0), predicted_length=exactly(12)
    )
    [one] = timetable(job).candidates([job])
    assert one.cost_s == pytest.approx(1.25)
    assert one.turn_s == pytest.approx(one.due_s + 20.0)
