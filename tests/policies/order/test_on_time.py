"""By hand: a token of a prompt takes a second (`PerToken`)."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batch_shape import BatchShape
from headway.core.job import Job, JobState
from headway.core.plan import StepOutcome, StepPlan
from headway.core.slo import Slo
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.order.on_time import OnTime
from headway.policies.protocols import Governing, KnowsLate, Learning
from tests.policies.order.per_token import PerToken, exactly
from tests.policies.order.test_index_properties import Desk, moves
from tests.strategies import UNTIMED, decoding, ids, instants, make_job, waiting_jobs


class SecondSteps(PerToken):
    """Every step is predicted to take a second."""

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of a step."""
        return 1.0


def on_time(*jobs: Job, **settings: Any) -> OnTime:
    """The order, with jobs that wait."""
    order = OnTime(SecondSteps(), **settings)
    for job in jobs:
        order.add(job)
    return order


def due(id_: str, ttft_s: float, prompt: int, **fields: Any) -> Job:
    """A job whose first token is due so many seconds after 0."""
    return make_job(id_, prompt=prompt, slo=Slo(ttft_s=ttft_s), **fields)


def run(order: OnTime, *jobs: Job, at_s: float) -> None:
    """A step of these jobs, a token each."""
    order.observe(StepOutcome(now_s=at_s, plan=StepPlan(), tokens=dict.fromkeys(jobs, 1)))


def test_which_protocols_it_keeps() -> None:
    order = on_time()
    for protocol in (Governing, KnowsLate, Learning):
        assert isinstance(order, protocol)


def test_those_in_time_by_due_time_then_the_rest_by_their_queues() -> None:
    # a may start until 9 and b until 3; d, 5 s of prompt due at 3, is late, and c has no target. By work the short c is
    # before d.
    jobs = due("a", 13.0, 4), due("b", 5.0, 2), make_job("c", prompt=1), due("d", 3.0, 5)
    order = on_time(*jobs, patience_s=1e9)
    assert ids(order.top(9, 0.0)) == ["b", "a", "c", "d"]
    assert ids(order.rank(jobs, 0.0)) == ["b", "a", "c", "d"]
    assert ids(order.on_time(jobs, 0.0)) == ["a", "b"]
    # At 3.5 b can no longer make it; its queue is before that of the longer d.
    assert ids(order.top(9, 3.5)) == ["a", "c", "b", "d"]


def test_where_not_all_can_be_in_time_the_costliest_is_given_up() -> None:
    # 4 + 3 + 3 s of prompts by 12, in half of the time: without a there is time for b and c.
    jobs = due("a", 12.0, 4), due("b", 12.0, 3), due("c", 12.0, 3)
    assert ids(on_time(*jobs).top(9, 0.0)) == ["b", "c", "a"]
    assert ids(on_time(*jobs, triage=False).top(9, 0.0)) == ["a", "b", "c"]
    assert ids(on_time(*jobs).rank(jobs, 0.0)) == ["b", "c", "a"]


def test_prompts_are_taken_to_get_half_of_the_time() -> None:
    # 2 s of prompt due at 5 and 4 s due at 10. With half of the time they take until 4 and until 12: the longer is
    # given up, and comes after the short one without a target.
    jobs = due("a", 10.0, 4), due("b", 5.0, 2), make_job("c", prompt=1)
    assert ids(on_time(*jobs).top(9, 0.0)) == ["b", "c", "a"]


def test_a_job_ahead_of_its_tokens_ranks_by_how_long_it_could_pause() -> None:
    # Two of five tokens by 2 s, a second each from now: behind, at 1.5 s a token, is less far than ahead at 9 s.
    fields: dict[str, Any] = {"output": 2, "first_token_s": 0.0, "limit": 9, "predicted_length": exactly(5)}
    slow = decoding("slow", slo=Slo(tbt_s=9.0), **fields)
    fast = decoding("fast", slo=Slo(tbt_s=1.5), **fields)
    order = on_time(slow, fast)
    assert ids(order.rank([slow, fast], 0.0)) == ["fast", "slow"]


HOURS = Slo(deadline_s=4 * 3600.0)


def test_what_can_wait_comes_after_all_others() -> None:
    # Batches of hours come last, by latest start, though they have a target that can be met and c has none.
    long, short = make_job("long", prompt=20, slo=HOURS), make_job("short", prompt=2, slo=HOURS)
    none, soon = make_job("none", prompt=9), due("soon", 60.0, 5)
    order = on_time(long, short, none, soon, patience_s=1e9)
    for count in range(1, 5):
        assert ids(order.top(count, 0.0)) == ["soon", "none", "long", "short"][:count]
    assert ids(order.rank([short, long, soon, none], 0.0)) == ["soon", "none", "long", "short"]
    # Ten minutes before they have to start they are work with a deadline as any other.
    late_s = HOURS.deadline_s - 500.0  # type: ignore[operator]
    assert (
        ids(order.top(4, late_s))[:2] == ids(order.rank([short, long, none], late_s))[:2] == ["long", "short"]
    )


def test_what_can_wait_comes_last_where_step_times_are_distrusted_too() -> None:
    batch, none, runs = make_job("batch", prompt=2, slo=HOURS), make_job("none", prompt=9), decoding("x")
    order = on_time(batch, none, runs, patience_s=1e9)
    order.remove(runs)
    for step in range(80):
        run(order, runs, at_s=3.0 * step)  # predicted: a second
    assert not order.trusts_step_times
    assert ids(order.top(2, 240.0)) == ids(order.rank([batch, none], 240.0)) == ["none", "batch"]


def test_what_can_wait_and_is_overdue_while_step_times_are_distrusted_is_named_once() -> None:
    batch, runs = make_job("a", prompt=2, slo=HOURS), decoding("x")
    none = make_job("b", prompt=9, arrival_s=239.5)
    order = on_time(batch, none, runs, patience_s=1.0)
    order.remove(runs)
    for step in range(80):
        run(order, runs, at_s=3.0 * step)
    assert order.overdue(240.0) == [batch]
    assert ids(order.top(9, 240.0)) == ids(order.rank([none, batch], 240.0)) == ["a", "b"]


def test_one_that_keeps_its_pace_stays_in_time_from_one_estimate_to_the_next() -> None:
    # A hundred tokens, the last due at 99 x 1.1 s; 61 of a second each are to come. Its work is estimated anew at 55.
    job = decoding(output=39, limit=999, first_token_s=0.0, slo=Slo(tbt_s=1.1), predicted_length=exactly(100))
    order = on_time(job, trusted_at_first=True)
    order.remove(job)
    assert order.latest_start_s(job) == pytest.approx(47.9)
    job.num_output_tokens, job.num_computed_tokens = 49, 58
    assert order.latest_start_s(job) == pytest.approx(57.9)
    assert order.on_time([job], 48.0) == [job]


def test_who_waits_longest_without_a_chance_comes_first_in_the_end() -> None:
    late = due("late", 1.0, 5, arrival_s=0.0)
    patient = make_job("patient", prompt=1, arrival_s=1.0)
    urgent = due("urgent", 80.0, 5, arrival_s=50.0)
    order = on_time(late, patient, urgent, patience_s=60.0)
    assert ids(order.top(9, 59.0))[0] == "urgent"
    assert ids(order.top(9, 61.0)) == ["late", "urgent", "patient"]
    # One at a time: the next when the first has ended, wherever it was.
    order.remove(late)
    assert ids(order.top(9, 65.0)) == ["urgent", "patient"]
    assert ids(order.rank([late, urgent, patient], 65.0)) == ["late", "urgent", "patient"]
    order.end(late)
    assert ids(order.top(9, 65.0)) == ["patient", "urgent"]


def test_one_that_was_overdue_and_can_be_in_time_after_all_is_named_once() -> None:
    # Six seconds of prompt due at 10 are late at 5; with four of them computed two are left, which are not.
    job, other = due("job", 10.0, 6), make_job("other", prompt=1, arrival_s=1.0)
    order = on_time(job, other, patience_s=5.0)
    assert ids(order.top(9, 5.0)) == ["job", "other"]
    assert not order.on_time([job], 5.0)
    job.num_computed_tokens = 4
    order.observe(StepOutcome(now_s=5.0, plan=StepPlan(), tokens={job: 4}, num_tokens=4))
    assert order.on_time([job], 5.0) == [job]
    assert ids(order.top(9, 5.0)) == ids(order.rank([other, job], 5.0)) == ["job", "other"]


def test_without_targets_one_that_has_waited_too_long_comes_first() -> None:
    # By work `short` is first, however late it is: it came soon after `long`.
    long, short = make_job("long", prompt=50), make_job("short", prompt=1, arrival_s=0.1)
    order = on_time(long, short, patience_s=60.0)
    for now_s, first in ((59.0, ["short", "long"]), (60.0, ["long", "short"])):
        assert ids(order.top(2, now_s)) == ids(order.rank([long, short], now_s)) == first
    assert order.overdue(60.0) == [long]


def test_while_step_times_are_not_trusted_one_that_has_waited_too_long_comes_first() -> None:
    # `runs` is older, but runs; `old` keeps the rank that it took while no job was taken to be in time.
    runs = decoding("runs", first_token_s=0.0, slo=Slo(deadline_s=1e5))
    old, young = make_job("old", prompt=50, arrival_s=1.0), due("young", 200.0, 1, arrival_s=30.0)
    order = on_time(runs, old, young, patience_s=60.0)
    order.remove(runs)
    run(order, runs, at_s=50.0)
    for predicted_s, trusted in ((3.0, False), (1.0, True)):
        for _ in range(99):
            order.steps.observe(predicted_s, 1.0)
        run(order, runs, at_s=70.0)
        assert order.trusts_step_times is trusted
        assert ids(order.top(2, 71.0)) == ids(order.rank([young, old], 71.0)) == ["old", "young"]


def test_nobody_is_in_time_while_steps_take_something_else_than_predicted() -> None:
    first, urgent, runs = make_job("first", prompt=1), due("urgent", 50.0, 9, arrival_s=1.0), decoding("x")
    order = on_time(first, urgent, runs, triage=False, patience_s=1e9)
    order.remove(runs)
    for step in range(80):
        run(order, runs, at_s=3.0 * step)  # predicted: a second
    assert not order.trusts_step_times
    assert ids(order.top(9, 1.0)) == ["first", "urgent"]
    assert ids(order.rank([urgent, first], 1.0)) == ["first", "urgent"]
    for step in range(300):
        run(order, runs, at_s=240.0 + step)
    assert order.trusts_step_times
    assert ids(order.top(9, 1.0)) == ["urgent", "first"]


def test_while_plans_rank_latest_starts_are_taken_anew_beside_the_step() -> None:
    class Counting(SecondSteps):
        asked = 0

        def prefill_s(self, num_tokens: int) -> float:
            self.asked += 1
            return super().prefill_s(num_tokens)

    cost = Counting()
    order = OnTime(cost)
    job = decoding(slo=Slo(deadline_s=100.0), limit=1_000, predicted_length=exactly(80))
    order.add(job)
    order.remove(job)
    run(order, job, at_s=0.0)
    order.rank([job], 0.0)
    job.num_output_tokens, job.num_computed_tokens = 40, 49
    asked = cost.asked
    run(order, job, at_s=1.0)
    beside = cost.asked
    assert beside > asked
    assert order.rank([job], 2.0) == [job]
    assert cost.asked == beside


def test_latest_starts_of_those_that_wait_with_a_deadline_follow_what_steps_take_eight_a_step() -> None:
    # Ten tokens of a second each until 100; then steps turn out to take two seconds.
    jobs = [make_job(f"{n}", prompt=1, limit=10, slo=Slo(deadline_s=100.0)) for n in range(10)]
    order, other = on_time(*jobs), decoding("other", prompt=4, limit=99)
    other.state = JobState.RESIDENT
    order.add(other)
    order.remove(other)
    assert [order.latest_start_s(job) for job in jobs] == [90.0] * 10
    run(order, other, at_s=1.0)
    run(order, other, at_s=3.0)
    assert sorted(order.latest_start_s(job) for job in jobs) == [80.0] * 8 + [90.0] * 2
    run(order, other, at_s=5.0)
    assert [order.latest_start_s(job) for job in jobs] == [80.0] * 10


def test_a_prompt_that_has_begun_in_time_stays_in_time_while_it_goes_on() -> None:
    job = due("a", 10.0, 6)
    order = on_time(job)
    order.remove(job)
    assert not order.on_time([job], 5.0)  # 6 s of prompt from 5 on
    job.num_computed_tokens = 4
    order.observe(StepOutcome(now_s=4.0, plan=StepPlan(), tokens={job: 4}, num_tokens=4))
    assert order.on_time([job], 5.0) == [job]


def test_what_a_tenant_has_had_more_counts_as_if_it_were_due_later() -> None:
    # a is due a second before b; its tenant has had 16 tokens of 1/8 s, two seconds more.
    jobs = due("a", 9.0, 2, tenant="flood"), due("b", 10.0, 2, tenant="calm")
    ran = make_job("ran", prompt=1, tenant="flood", limit=99)
    order = on_time(*jobs, ran)
    assert ids(order.top(2, 0.0)) == ["a", "b"]
    order.remove(ran)
    ran.num_output_tokens = 16
    order.touch(ran)
    assert ids(order.top(2, 0.0)) == ids(order.rank(jobs, 0.0)) == ["b", "a"]


def test_what_a_tenant_has_had_more_counts_as_cost_where_one_is_given_up() -> None:
    # Two prompts of 2 and 3 s, due at 8 and computed in half of the time: not both. The longer is given
    # up, unless the other's tenant had 2 s more.
    jobs = due("short", 8.0, 2, tenant="flood"), due("long", 8.0, 3, tenant="calm")
    ran = make_job("ran", prompt=1, tenant="flood", limit=99)
    order = on_time(*jobs, ran)
    assert ids(order.top(1, 0.0)) == ["short"]
    order.remove(ran)
    ran.num_output_tokens = 16
    order.touch(ran)
    assert ids(order.top(2, 0.0)) == ["long", "short"]


def test_without_targets_it_is_least_work_and_says_so() -> None:
    order = on_time(make_job("a"))
    assert order.next_change_s(StepView()) == order._rest.next_change_s(StepView())
    order.add(due("b", 5.0, 1))
    assert order.next_change_s(StepView()) == -inf


@pytest.mark.parametrize("patience_s", [-1.0, float("nan")])
def test_a_patience_that_is_none_is_refused(patience_s: float) -> None:
    with pytest.raises(ConfigError, match=r"patience_s is .*; accepted: 0 or more seconds"):
        OnTime(patience_s=patience_s)


@UNTIMED
@given(jobs=waiting_jobs(), moves=moves, now_s=instants, triage=st.booleans())
def test_the_top_is_the_ranking_of_the_queue_and_nobody_is_lost(
    jobs: list[Job], moves: list[tuple[str, int]], now_s: float, triage: bool
) -> None:
    order = OnTime(PerToken(), triage=triage, patience_s=1e9)
    desk = Desk(order, jobs)
    for kind, pick in moves:
        desk.move(kind, pick)
        ranked = ids(order.rank(desk.waiting, now_s))
        assert sorted(ranked) == sorted(ids(desk.waiting))
        for k in (0, 1, 3, len(ranked), 99):
            assert ids(order.top(k, now_s)) == ranked[:k]


def test_who_comes_first_does_not_depend_on_how_many_are_asked_for() -> None:
    # A token takes a second, for half of the time. With `costly`, 840 s, the 185th and those behind would be late: it
    # is given up if they are weighed, too, which those are not who come behind the first 128.
    order = OnTime(PerToken())
    for number in range(128):
        order.add(due(f"{number:03}", 1400.0 + number, 2))
    order.add(due("costly", 1450.0, 420))
    for number in range(128, 400):
        order.add(due(f"{number:03}", 1400.0 + number, 2))
    first = ids(order.top(400, 0.0))
    for k in (1, 40, 128, 200, 300):
        assert ids(order.top(k, 0.0)) == first[:k]
