from __future__ import annotations

from math import inf, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import Job
from headway.core.plan import StepOutcome, StepPlan
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.order.predicted_remaining import PredictedRemaining, give_way
from headway.policies.presets import find_preset
from tests.policies.contract import Arrival, Workload, drive, from_preset
from tests.policies.instance import small_engine
from tests.policies.order.per_token import PerToken, exactly
from tests.strategies import UNTIMED, ids, instants, make_job


def expecting(id_: str, tokens: float, arrival_s: float = 0.0, prompt: int = 1) -> Job:
    return make_job(id_, prompt=prompt, limit=10_000, arrival_s=arrival_s, predicted_length=exactly(tokens))


NO_STEP = StepOutcome(now_s=0.0, plan=StepPlan())


def indexed(jobs: list[Job], tail: float = 0.5) -> PredictedRemaining:
    order = PredictedRemaining(PerToken(), tail=tail)
    for job in jobs:
        order.add(job)
    return order


def seen(jobs: list[Job], tail: float = 0.5) -> PredictedRemaining:
    """The order after a step without tokens, which goes by the backlogs that the jobs found."""
    order = indexed(jobs, tail)
    order.observe(NO_STEP)
    return order


def test_the_least_work_first_by_a_bounded_time() -> None:
    # Work 80/8 = 10, 16/8 = 2, 4 + 8/8 = 5: together 17, and T is 34. Keys: 0 + 34 ln 10 = 78.3, 45 + 34 ln 2 = 68.6,
    # 26 + 34 ln 5 = 80.7.
    jobs = [expecting("a", 80), expecting("b", 16, 45.0), expecting("c", 8, 26.0, prompt=5)]
    order = seen(jobs)
    assert ids(order.top(9, 70.0)) == ids(order.rank(jobs, 70.0)) == ["b", "a", "c"]
    # Time alone changes nothing.
    assert ids(order.top(9, 1e6)) == ["b", "a", "c"]
    # At one end of the dial it is nearly first come, first served (3.9, 46.2 and 28.7), at the other shortest first.
    assert ids(seen(jobs, tail=1.0).top(9, 70.0)) == ["a", "c", "b"]
    assert ids(seen(jobs, tail=0.0).top(9, 70.0)) == ["b", "c", "a"]


@pytest.mark.parametrize(("tail", "backlogs"), [(0.0, 40.0), (0.5, 2.0), (1.0, 0.1)])
def test_the_dial_is_in_mean_backlogs(tail: float, backlogs: float) -> None:
    assert give_way(tail) == pytest.approx(backlogs)


def test_the_dial_goes_by_the_backlog_of_late() -> None:
    # Jobs of 1 s: after the first there is 1 s of work, after the last 100 s, and the last 64 or so count.
    order = indexed([])
    jobs = [expecting(f"{n:02}", 8) for n in range(100)]
    for job in jobs:
        order.add(job)
        order.observe(NO_STEP)
    assert 64 < order.give_way_s < 200
    for job in jobs:
        order.end(job)
    for n in range(400):  # one at a time
        order.add(job := expecting(f"later {n:03}", 8))
        order.observe(NO_STEP)
        order.end(job)
    assert 2 <= order.give_way_s < 4


def test_ties_end_in_arrival_and_id() -> None:
    first, second = expecting("z", 8), expecting("y", 8)
    assert ids(indexed([first, second]).top(9, 0.0)) == ["y", "z"]


def test_who_runs_gains_rank_at_a_few_points_of_its_life() -> None:
    # Work 40/8 = 5 and 36/8 = 4.5. After 10 tokens 30 are to come: 3.75.
    runs, waits = expecting("runs", 40), expecting("waits", 36)
    order = indexed([runs, waits])
    order.remove(runs)
    runs.num_computed_tokens = 10
    runs.num_output_tokens = 9
    assert ids(order.rank([runs, waits], 0.0)) == ["waits", "runs"]
    runs.num_output_tokens = 10
    assert ids(order.rank([runs, waits], 0.0)) == ["runs", "waits"]


@pytest.mark.parametrize(("num_ranked", "outdated"), [(0, ["a", "b"]), (1, ["a", "b"]), (2, [])])
def test_while_plans_rank_all_who_run_work_is_estimated_beside_the_step(
    num_ranked: int, outdated: list[str]
) -> None:
    # 80 tokens to come are estimated anew after 20; the step brings the 20th.
    jobs = [expecting("a", 80), expecting("b", 80)]
    order = indexed(jobs)
    for job in jobs:
        order.remove(job)
        job.num_output_tokens = job.num_computed_tokens = 19
    if num_ranked:
        order.rank(jobs[:num_ranked], 0.0)
    order.observe(StepOutcome(now_s=1.0, plan=StepPlan(), tokens=dict.fromkeys(jobs, 1)))
    for job in jobs:
        job.num_output_tokens = job.num_computed_tokens = 20
    assert ids(order.work.outdated(jobs)) == outdated


def test_a_job_that_ended_in_the_step_is_not_estimated() -> None:
    job = expecting("a", 80)
    order = indexed([job])
    order.rank([job], 0.0)
    order.remove(job)
    order.end(job)
    order.observe(StepOutcome(now_s=1.0, plan=StepPlan(), tokens={job: 1}))
    assert job not in order


def test_a_job_whose_kv_was_dropped_has_its_prefill_before_it_again() -> None:
    # 16/8 and nothing to compute against 24/8; dropped, 10 + 16 tokens less one step are to be computed: 25 + 2.
    falls, waits = expecting("falls", 32, prompt=10), expecting("waits", 24)
    order = indexed([falls, waits])
    order.remove(falls)
    falls.num_output_tokens = 16
    falls.num_computed_tokens = 25
    order.touch(falls)
    assert ids(order.rank([falls, waits], 0.0)) == ["falls", "waits"]
    falls.num_computed_tokens = 0
    order.add(falls)
    assert ids(order.top(2, 0.0)) == ["waits", "falls"]


def test_with_the_first_answer_nobody_goes_by_its_limit_any_more() -> None:
    # Unpredicted, both are worth their limit of 800 tokens, 100; then an answer of 8 ends, and a newcomer is worth 1.
    runs, waits, short = (make_job(id_, prompt=1, limit=800) for id_ in ("runs", "waits", "short"))
    order = indexed([runs, waits, short])
    order.remove(runs)
    order.remove(short)
    short.num_output_tokens = 8
    order.finished(short)
    order.end(short)
    assert [order.work.of(job) for job in (runs, waits)] == [100.0, 100.0]
    newcomer = make_job("newcomer", prompt=1, limit=800, arrival_s=5.0)
    order.add(newcomer)
    order.observe(NO_STEP)
    order.renew([runs])
    assert [order.work.of(job) for job in (runs, waits, newcomer)] == pytest.approx([1.0] * 3, rel=1e-3)
    assert ids(order.rank([newcomer, waits, runs], 5.0)) == ["runs", "waits", "newcomer"]


def test_whoever_is_touched_is_estimated_anew_wherever_it_is() -> None:
    # Nine tokens are too few to look again (see above), but 31/8 is less than 4.5.
    touched, other = expecting("touched", 40), expecting("other", 36)
    order = indexed([touched, other])
    touched.num_computed_tokens = touched.num_output_tokens = 9
    order.touch(touched)
    assert ids(order.top(2, 0.0)) == ["touched", "other"]
    order = indexed([touched, other])
    order.remove(touched)
    touched.num_computed_tokens = touched.num_output_tokens = 12
    order.touch(touched)
    assert ids(order.rank([other, touched], 0.0)) == ["touched", "other"]
    assert order.work.of(touched) == 28 / 8


def test_it_foresees_no_change_where_only_one_is_left() -> None:
    order = indexed([expecting("a", 8)])
    assert order.next_change_s(StepView()) == inf
    order.add(expecting("b", 8))
    assert order.next_change_s(StepView()) == -inf


@pytest.mark.parametrize("tail", [-0.1, 1.1, float("nan")])
def test_a_dial_beyond_its_ends_is_refused(tail: float) -> None:
    with pytest.raises(ConfigError, match=r"tail is .*; accepted: 0 \(least mean completion time\) to 1"):
        PredictedRemaining(tail=tail)


@UNTIMED
@given(
    jobs=st.lists(st.tuples(instants, st.integers(1, 400), st.integers(1, 40)), min_size=1, max_size=30),
    tail=st.floats(0.0, 1.0),
)
def test_no_job_is_passed_by_one_that_comes_later_than_it_gives_way(
    jobs: list[tuple[float, int, int]], tail: float
) -> None:
    """A job that ranks before another arrived within T ln(ratio of their work), and if later has no more work."""
    made = [expecting(f"{n:02}", tokens, at_s, prompt) for n, (at_s, tokens, prompt) in enumerate(jobs)]
    order = seen(made, tail)
    work_s = [job.num_prompt_tokens - 1 + tokens / 8 for job, (_, tokens, _) in zip(made, jobs, strict=True)]
    work = dict(zip(made, work_s, strict=True))
    ranked = order.top(len(made), 0.0)
    for place, job in enumerate(ranked):
        for before in ranked[:place]:
            later_s = order.give_way_s * log(1.02 * work[job] / work[before])
            assert before.arrival_s <= job.arrival_s + later_s + 1e-6


class AHundredTimesAsFast(PerToken):
    """By a power of two, nearly: so nothing is rounded otherwise."""

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds for a prompt."""
        return num_tokens / 128


@UNTIMED
@given(jobs=st.lists(st.tuples(st.integers(2, 400), st.integers(1, 40)), min_size=1, max_size=30))
def test_jobs_that_came_together_rank_the_same_on_a_faster_machine(jobs: list[tuple[int, int]]) -> None:
    made = [expecting(f"{n:02}", tokens, 0.0, prompt) for n, (tokens, prompt) in enumerate(jobs)]
    slow, fast = (PredictedRemaining(cost(), tail=0.6) for cost in (PerToken, AHundredTimesAsFast))
    for order in (slow, fast):
        for job in made:
            order.add(job)
        order.observe(NO_STEP)
    assert ids(slow.top(99, 0.0)) == ids(fast.top(99, 0.0))


def flood(tail: float) -> float | None:
    """When a long job starts, on one seat, while a short one comes every second for a minute."""
    smalls = [
        Arrival(id=f"{n:02}", at_step=n, prompt=11, output=1, limit=1, predicted=exactly(1))
        for n in range(60)
    ]
    long = Arrival(id="long", at_step=0, prompt=31, output=3, limit=3, predicted=exactly(3))
    engine = small_engine(num_blocks=100, max_num_seqs=8, batch_width=1, max_num_batched_tokens=100)
    preset = find_preset(
        "vllm", order=f"predicted-remaining:tail={tail}", batching="top-jobs", eviction="recompute"
    )
    workload = Workload((*smalls, long), engine)
    run = drive(from_preset(preset)(workload), workload)
    return run.instance.records["long"].first_scheduled_s


def test_a_flood_of_short_answers_delays_a_long_one_for_as_long_as_it_gives_way_and_no_more() -> None:
    # A tenth of a second a token. The short ones' work is 10 x 0.1 + 0.1 / 8 s, the long one's 30 x 0.1 + 3 x 0.1 / 8:
    # three times that. In the first step there are 4.05 s of work, and in each that
    # follows; T is 8.1 s. The long one gives way for T ln 3 = 8.9 s, so those of 0 to 8 s go first, a second each.
    assert flood(0.5) == 9.0
    # A twentieth of that at 1, and 20 times as much, more than the minute, at 0.
    assert flood(1.0) == 1.0
    assert flood(0.0) == 60.0
