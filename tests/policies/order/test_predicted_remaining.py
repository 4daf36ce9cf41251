from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import Job
from headway.core.plan import StepOutcome, StepPlan
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.order.predicted_remaining import PredictedRemaining, UsualWork
from headway.policies.presets import find_preset
from tests.policies.contract import Arrival, Workload, drive, from_preset
from tests.policies.instance import small_engine
from tests.policies.order.per_token import PerToken, exactly
from tests.strategies import UNTIMED, ids, instants, make_job


def learned(*steps: Sequence[float]) -> UsualWork:
    """Those who came before each step."""
    usual = UsualWork()
    for works_s in steps:
        for work_s in works_s:
            usual.learn(work_s)
        usual.settle()
    return usual


def test_work_is_in_seconds_before_the_first_step_and_then_in_times_the_mean() -> None:
    assert learned().times(3.0) == 3.0
    assert learned([2.0, 6.0]).times(8.0) == 2.0


def test_the_unit_stays_until_newcomers_bring_twice_as_much_or_half() -> None:
    usual = learned([4.0])
    # The means are 5, 6 and 9; with seven of 2 s more 50/11, more than half of 9, and with the eighth 52/12.
    comes = [
        (6.0, False, 4.0),
        (8.0, False, 4.0),
        (18.0, True, 9.0),
        *7 * [(2.0, False, 9.0)],
        (2.0, True, 52 / 12),
    ]
    for work_s, changed, unit_s in comes:
        usual.learn(work_s)
        assert usual.settle() is changed
        assert usual.times(unit_s) == pytest.approx(1.0)
    assert not usual.settle()


def test_four_hundred_newcomers_are_all_that_counts() -> None:
    assert learned([1.0] * 9000, [3.0] * 400).times(3.0) == 1.0
    # One by one those of old fade; the unit follows once the mean is twice what it was.
    assert learned([1.0] * 9000, *([3.0] for _ in range(800))).times(3.0) == pytest.approx(1.5, rel=0.1)


def test_no_work_is_no_unit() -> None:
    assert learned([0.0]).times(3.0) == 3.0


@UNTIMED
@given(works_s=st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=5))
def test_those_of_one_step_count_alike_whoever_came_first(works_s: list[float]) -> None:
    assert len({learned([1.0], order).times(1.0) for order in permutations(works_s)}) == 1


def expecting(id_: str, tokens: float, arrival_s: float = 0.0, prompt: int = 1) -> Job:
    return make_job(id_, prompt=prompt, limit=10_000, arrival_s=arrival_s, predicted_length=exactly(tokens))


NO_STEP = StepOutcome(now_s=0.0, plan=StepPlan())


def indexed(jobs: list[Job], give_way_s: float = 10.0) -> PredictedRemaining:
    order = PredictedRemaining(PerToken(), give_way_s=give_way_s)
    for job in jobs:
        order.add(job)
    return order


def test_the_least_work_first_each_second_of_work_standing_back_for_ten_of_age() -> None:
    # Work 80/8 = 10, 16/8 = 2, 4 + 8/8 = 5, and keys 0 + 100, 70 + 20, 65 + 50.
    jobs = [expecting("a", 80), expecting("b", 16, 70.0), expecting("c", 8, 65.0, prompt=5)]
    order = indexed(jobs)
    assert ids(order.top(9, 70.0)) == ids(order.rank(jobs, 70.0)) == ["b", "a", "c"]
    # Time alone changes nothing; where nobody gives way it is first come, first served.
    assert ids(order.top(9, 1e6)) == ["b", "a", "c"]
    assert ids(indexed(jobs, give_way_s=0.0).top(9, 70.0)) == ["a", "c", "b"]


def test_ties_end_in_arrival_and_id() -> None:
    # 0 + 10 x 1 and 10 + 10 x 0.
    first, second = expecting("z", 8), expecting("y", 8)
    assert ids(indexed([first, second]).top(9, 0.0)) == ["y", "z"]


def test_who_runs_gains_rank_at_a_few_points_of_its_life() -> None:
    # Keys 10 x 40/8 = 50 and 10 x 36/8 = 45. After 10 tokens 30 are to come: 37.5.
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


def test_the_work_ahead_is_that_of_those_who_rank_before() -> None:
    # Work 1, 2 and 4 seconds.
    long, short, middle = expecting("l", 32), expecting("s", 8), expecting("m", 16)
    assert indexed([long, short, middle]).work_ahead_s([long, short, middle]) == [3.0, 0.0, 1.0]


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
    # Nine tokens are too few to look again (see above), but 10 x 31/8 is less than 45.
    touched, other = expecting("touched", 40), expecting("other", 36)
    order = indexed([touched, other])
    touched.num_computed_tokens = touched.num_output_tokens = 9
    order.touch(touched)
    assert ids(order.top(2, 0.0)) == ["touched", "other"]
    order = indexed([touched, other])
    order.remove(touched)
    touched.num_computed_tokens = touched.num_output_tokens = 12
    order.touch(touched)
    assert order.work_ahead_s([touched, other]) == [0.0, 28 / 8]


def test_it_foresees_no_change_where_only_one_is_left() -> None:
    order = indexed([expecting("a", 8)])
    assert order.next_change_s(StepView()) == inf
    order.add(expecting("b", 8))
    assert order.next_change_s(StepView()) == -inf


@pytest.mark.parametrize("give_way_s", [-1.0, inf])
def test_for_how_long_a_job_gives_way_is_finite(give_way_s: float) -> None:
    with pytest.raises(ConfigError, match=r"give_way_s is .*; accepted: 0 or more"):
        PredictedRemaining(give_way_s=give_way_s)


@UNTIMED
@given(
    jobs=st.lists(st.tuples(instants, st.integers(1, 400), st.integers(1, 40)), min_size=1, max_size=30),
    give_way_s=st.sampled_from([0.0, 0.5, 3.0, 100.0]),
    a_step_after=st.sets(st.integers(0, 30)),
)
def test_nobody_is_passed_by_who_comes_later_than_it_gives_way(
    jobs: list[tuple[float, int, int]], give_way_s: float, a_step_after: set[int]
) -> None:
    """Whoever ranks before a job arrived within give_way_s x work of it, and if later has no more work."""
    made = [expecting(f"{n:02}", tokens, at_s, prompt) for n, (at_s, tokens, prompt) in enumerate(jobs)]
    order = indexed([], give_way_s)
    for number, job in enumerate(made):
        order.add(job)
        if number in a_step_after:
            order.observe(NO_STEP)
    # All keys are in the same unit, whichever held when they came. An eighth of a step stays about that.
    work_s = [job.num_prompt_tokens - 1 + tokens / 8 for job, (_, tokens, _) in zip(made, jobs, strict=True)]
    work = dict(zip(made, map(order.usual.times, work_s), strict=True))
    ranked = order.top(len(made), 0.0)
    for place, job in enumerate(ranked):
        for before in ranked[:place]:
            assert before.arrival_s <= job.arrival_s + 1.02 * give_way_s * work[job]
            assert before.arrival_s <= job.arrival_s or work[before] <= 1.02 * work[job]


class AHundredTimesAsFast(PerToken):
    """By a power of two, nearly: so nothing is rounded otherwise."""

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds for a prompt."""
        return num_tokens / 128


@UNTIMED
@given(
    jobs=st.lists(st.tuples(instants, st.integers(1, 400), st.integers(1, 40)), min_size=1, max_size=30),
    steps_after=st.sets(st.integers(0, 30)),
)
def test_a_faster_machine_ranks_the_same(jobs: list[tuple[float, int, int]], steps_after: set[int]) -> None:
    made = [expecting(f"{n:02}", tokens, at_s, prompt) for n, (at_s, tokens, prompt) in enumerate(jobs)]
    slow, fast = (PredictedRemaining(cost(), give_way_s=3.0) for cost in (PerToken, AHundredTimesAsFast))
    for order in (slow, fast):
        for number, job in enumerate(made):
            order.add(job)
            if number in steps_after:
                order.observe(NO_STEP)
        order.observe(NO_STEP)
    assert ids(slow.top(99, 0.0)) == ids(fast.top(99, 0.0))


def flood(give_way_s: float) -> float | None:
    """When a long job starts, on one seat, while somebody short comes every second for a minute."""
    smalls = [
        Arrival(id=f"{n:02}", at_step=n, prompt=11, output=1, limit=1, predicted=exactly(1))
        for n in range(60)
    ]
    long = Arrival(id="long", at_step=0, prompt=31, output=3, limit=3, predicted=exactly(3))
    engine = small_engine(num_blocks=100, max_num_seqs=8, batch_width=1, max_num_batched_tokens=100)
    preset = find_preset(
        "vllm",
        order=f"predicted-remaining:give_way_s={give_way_s}",
        batching="top-jobs",
        eviction="recompute",
    )
    workload = Workload((*smalls, long), engine)
    run = drive(from_preset(preset)(workload), workload)
    return run.instance.records["long"].first_scheduled_s


def test_a_flood_of_short_answers_delays_a_long_one_for_as_long_as_it_gives_way_and_no_more() -> None:
    # A tenth of a second a token. The short ones' work is 10 x 0.1 + 0.1 / 8 s, the long one's 30 x 0.1 + 3 x 0.1 / 8:
    # three times that. The first step sees one of each, so the unit is the mean of these, and stays, for the mean
    # of all never falls to half of it: a short job is half a unit, the long one one and a half. Where a unit gives way
    # for 4.9 s those of 0 to 4 s go first, a second each, and the one of 5 s (5 + 2.45) comes after it (7.35).
    assert flood(4.9) == 5.0
    assert flood(9.9) == 10.0
    # Where nobody gives way only the one that came with it goes first, by its id.
    assert flood(0.0) == 1.0
    # Where they do for more than the minute it is the last.
    assert flood(1000.0) == 60.0


def test_keys_are_taken_anew_when_newcomers_bring_twice_the_work() -> None:
    # Each has 8 s of work, which is the unit after the first step. A unit gives way for a second.
    old, new = expecting("old", 64), expecting("new", 64, 0.5)
    order = indexed([old], give_way_s=1.0)
    order.observe(NO_STEP)
    order.add(new)
    assert order.usual.times(8.0) == 1.0
    order.observe(NO_STEP)
    # Two with ten times the work: the mean of all, (2 x 8 + 2 x 80) / 4 = 44 s, is the new unit.
    for number in range(2):
        order.add(expecting(f"much{number}", 640, 20.0))
    order.observe(NO_STEP)
    assert order.usual.times(44.0) == pytest.approx(1.0, rel=1e-3)
    # `old` gives way for 8/44 s now, so one that comes at 0.4 s is late even with next to no work.
    least = expecting("least", 1, 0.4)
    order.add(least)
    assert ids(order.top(3, 20.0)) == ["old", "least", "new"]


def test_with_another_unit_all_are_sorted_at_once_and_estimated_anew_in_turn() -> None:
    # 130 wait, and their prompts have been computed since they were estimated; then others bring a hundred times as
    # much. 64 are estimated anew beside each step, in the order they came.
    order = PredictedRemaining(PerToken(), give_way_s=1.0)
    jobs = [expecting(f"{number:03}", 64 + number / 1000, prompt=9) for number in range(130)]
    for job in jobs:
        order.add(job)
    order.observe(NO_STEP)
    for job in jobs:
        job.num_computed_tokens = 8  # of nine
    before_s = [order.work.of(job) for job in jobs]
    for number in range(130):
        order.add(expecting(f"much{number:03}", 6400, 20.0))
    new_s = []
    for _ in range(5):
        order.observe(NO_STEP)
        new_s.append(sum(order.work.of(job) < was_s for job, was_s in zip(jobs, before_s, strict=True)))
        keys = [
            (job.arrival_s + order.usual.times(order.work.of(job)), job.id) for job in order.top(260, 20.0)
        ]
        assert keys == sorted(keys)
    assert new_s == [64, 128, 130, 130, 130]
