"""By hand: a second a token of a prompt (`PerToken`), an eighth of one for each token to come."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.cost import CostModel
from headway.core.job import Job
from headway.core.length_estimate import LengthEstimate
from headway.core.plan import StepOutcome, StepPlan
from headway.policies.order.governed import Governed
from headway.policies.order.least_work import LeastWork
from headway.policies.order.on_time import OnTime
from headway.policies.order.predicted_remaining import PredictedRemaining
from headway.policies.order.remaining_work import (
    ASSUMED_STEP_S,
    LEAST_STRIDE_TOKENS,
    GittinsWork,
    RemainingWork,
    UsualLength,
    work_per_end_s,
)
from headway.policies.order.response_ratio import Hrrn
from headway.policies.protocols import Order
from tests.policies.order.per_token import PerToken, exactly
from tests.strategies import UNTIMED, decoding, ids, make_job, prefilling


def usual_after(*lengths: int) -> LengthEstimate:
    """The usual length after answers of these lengths."""
    usual = UsualLength()
    for tokens in lengths:
        usual.learn(tokens)
    assert usual.estimate is not None
    return usual.estimate


def test_the_first_few_say_where_and_not_how_far() -> None:
    first = usual_after(10, 190)
    assert (first.tokens, first.low_tokens, first.high_tokens) == (100.0, 50.0, 200.0)


def test_the_interval_is_as_wide_as_answers_are_unlike() -> None:
    # Of these one in ten lies below 80 and one in ten above 180: as far apart as 1.5 either way. Their mean is 130.
    some = usual_after(*[80, 180] * 5)
    assert (some.low_tokens, some.tokens, some.high_tokens) == pytest.approx((130 / 1.5, 130.0, 130 * 1.5))


def test_it_is_never_a_point_and_never_wider_than_three() -> None:
    assert usual_after(*[50] * 9).high_tokens == pytest.approx(55.0)
    assert usual_after(*[10, 1000] * 9).high_tokens == pytest.approx(3 * 505.0)


def test_the_more_unlike_they_are_the_more_an_old_answer_has_yet_to_bring() -> None:
    alike, unlike = usual_after(*[505] * 10), usual_after(*[10, 1000] * 5)
    assert alike.remaining_tokens(500) < unlike.remaining_tokens(500)


def test_it_follows_the_traffic() -> None:
    # The last 400 count: 200 of 1,000 tokens and 200 of 10.
    assert usual_after(*[1000] * 400, *[10] * 200).tokens == pytest.approx(505.0)


def test_which_are_longer_than_so_many_tokens() -> None:
    usual = UsualLength()
    for tokens in (30, 10, 20, 40, 50, 0):
        usual.learn(tokens)
    assert list(usual.longer_than(0, 9)) == [1, 10, 20, 30, 40, 50]
    assert list(usual.longer_than(20, 9)) == [30, 40, 50]
    assert list(usual.longer_than(50, 9)) == []
    # Three stand for six: the middles of their thirds.
    assert list(usual.longer_than(0, 3)) == [10, 30, 50]


@UNTIMED
@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=50))
def test_it_lies_among_what_came_and_inside_its_interval(lengths: list[int]) -> None:
    usual = usual_after(*lengths)
    assert max(1, min(lengths)) * 0.999 <= usual.tokens <= max(1, *lengths) * 1.001
    assert usual.low_tokens < usual.tokens < usual.high_tokens


def test_work_is_the_prefill_to_come_and_a_share_of_a_step_for_each_token() -> None:
    work = RemainingWork(PerToken())
    # 5 prompt tokens take 5 s, one of them with the first step of the answer; 16 tokens are 16/8 s.
    assert work.estimate(make_job(prompt=5, limit=99, predicted_length=exactly(16))) == (5 - 1) + 16 / 8
    # 3 of the 5 are computed.
    assert work.estimate(prefilling(prompt=5, computed=3, limit=99, predicted_length=exactly(16))) == 1 + 2


def test_a_step_is_shared_by_the_most_of_late() -> None:
    work = RemainingWork(PerToken())
    job = make_job(prompt=5, limit=99, predicted_length=exactly(16))
    jobs = [make_job(str(number)) for number in range(16)]

    def steps(count: int, *sharers: Job) -> None:
        for _ in range(count):
            work.observe(StepOutcome(now_s=0.0, plan=StepPlan(), tokens=dict.fromkeys(sharers, 1)))

    # Eight are assumed; once sixteen have shared one a token is a sixteenth of a second, and a lull changes little.
    steps(1, *jobs)
    assert work.estimate(job) == 4 + 16 / 16
    steps(100, *jobs[:2])
    assert work.estimate(job) == pytest.approx(4 + 16 / 16, rel=0.01)
    # But less than eight are believed in the end, and steps of nobody are shared by one.
    steps(20_000, *jobs[:2])
    assert work.estimate(job) == 4 + 16 / 2
    steps(20_000)
    assert work.estimate(job) == 4 + 16


def test_nothing_beyond_the_limit_is_to_come() -> None:
    work = RemainingWork(PerToken())
    assert work.estimate(decoding(output=2, limit=10, predicted_length=exactly(50))) == 8 / 8
    assert work.estimate(decoding(output=10, limit=10, predicted_length=exactly(50))) == 1 / 8


def test_an_answer_nobody_predicted_is_as_long_as_those_that_finished() -> None:
    work = RemainingWork(PerToken())
    # Until one has, its limit: 64 tokens are 8 s.
    assert work.estimate(make_job(prompt=1, limit=64)) == 8.0
    for tokens in (10, 30):
        work.learn(decoding(output=tokens))
    # Then their mean: 20 tokens are 2.5 s. The limit still holds.
    assert work.estimate(make_job(prompt=1, limit=64)) == pytest.approx(20 / 8)
    assert work.estimate(make_job(prompt=1, limit=8)) == 8 / 8


def test_before_a_step_was_measured_one_is_assumed() -> None:
    assert RemainingWork().estimate(make_job(predicted_length=exactly(8), limit=99)) == ASSUMED_STEP_S


def test_what_was_estimated_stands_until_a_quarter_has_come() -> None:
    # 80 to come: a quarter are 20 tokens. Then 60 are, and it is min(60, 2 x 20) / 4 = 10 tokens until the next.
    work = RemainingWork(PerToken())
    job = make_job(prompt=1, limit=99, predicted_length=exactly(80))
    work.estimate(job)
    job.num_output_tokens = job.num_computed_tokens = 19
    assert (work.outdated([job]), work.of(job)) == ([], 80 / 8)
    job.num_output_tokens = job.num_computed_tokens = 20
    assert work.outdated([job]) == [job]
    assert work.estimate(job) == pytest.approx(60 / 8, rel=1e-3)
    job.num_output_tokens = 29
    assert work.outdated([job]) == []
    job.num_output_tokens = 30
    assert work.outdated([job]) == [job]


@UNTIMED
@given(tokens=st.integers(1, 600), factor=st.floats(1.0, 4.0), grows_by=st.integers(1, 7))
def test_what_is_kept_is_near_what_would_be_estimated(tokens: int, factor: float, grows_by: int) -> None:
    """The stated error, over the life of an answer three times as long as predicted."""
    estimate = LengthEstimate(float(tokens), tokens / factor, tokens * factor)
    remaining_tokens = cache(estimate.remaining_tokens)
    kept, anew = RemainingWork(PerToken()), RemainingWork(PerToken())
    job = decoding(output=1, limit=10_000, predicted_length=estimate)
    kept.estimate(job)
    allowed = (LEAST_STRIDE_TOKENS + grows_by) / 8
    estimated = 0
    while job.num_output_tokens < 3 * tokens:
        job.num_output_tokens += grows_by
        job.num_computed_tokens += grows_by
        for outdated in kept.outdated([job]):
            kept.estimate(outdated)
            estimated += 1
        fresh_s = least_s = anew.estimate(job)
        most = 4 / 3
        if job.num_output_tokens > tokens:
            # It may stop being nearly done, and become one that follows no estimate, within a stride.
            stride = max(LEAST_STRIDE_TOKENS, job.num_output_tokens / 4) + grows_by
            since = range(max(1, floor(job.num_output_tokens - stride)), job.num_output_tokens + 1)
            least_s, most = min(map(remaining_tokens, since)) / 8, 2
        assert 0.9 * least_s - allowed <= kept.of(job) <= most * fresh_s + allowed
    assert estimated <= 60


class Learning(PerToken):
    """A model that knows nothing until it is ready, and may be refitted."""

    def __init__(self) -> None:
        self.token_s = 0.0

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds for a prompt."""
        return num_tokens * self.token_s


def in_doubt_after_a_step(work: RemainingWork, *jobs: Job) -> list[str]:
    work.observe(StepOutcome(now_s=0.0, plan=StepPlan(), tokens=dict.fromkeys(jobs, 1)))
    return ids(work.next_in_doubt())


def test_all_are_in_doubt_once_step_times_are_known_or_half_as_much_again() -> None:
    cost = Learning()
    work, job = RemainingWork(cost), make_job("job", prompt=7_000, limit=8)
    assert work.estimate(job) == pytest.approx(ASSUMED_STEP_S)
    assert in_doubt_after_a_step(work) == []
    for token_s, doubted in ((1e-4, ["job"]), (1.4e-4, []), (1.6e-4, ["job"]), (1.1e-4, []), (1e-4, ["job"])):
        cost.token_s = token_s
        assert in_doubt_after_a_step(work) == doubted
        assert in_doubt_after_a_step(work) == []
    assert work.estimate(job) == pytest.approx(0.7, rel=0.01)


def test_all_are_in_doubt_once_more_share_a_step_or_answers_are_longer() -> None:
    work, job = RemainingWork(PerToken()), make_job("job", limit=99)
    work.estimate(job)
    assert in_doubt_after_a_step(work, *(make_job(f"{n}") for n in range(12))) == []
    assert in_doubt_after_a_step(work, *(make_job(f"{n}") for n in range(13))) == ["job"]
    for tokens, doubted in ((8, ["job"]), (12, []), (30, ["job"])):  # means of 8, 10 and 16.7
        work.learn(decoding(output=tokens))
        assert in_doubt_after_a_step(work) == doubted


def test_those_in_doubt_keep_their_turn_when_all_are_doubted_again() -> None:
    # 100 jobs: 64 are taken, then all are doubted once more. The 36 come first.
    work, jobs = RemainingWork(PerToken()), [make_job(f"{n:02}") for n in range(100)]
    for job in jobs:
        work.estimate(job)
    work.doubt_all()
    assert list(work.next_in_doubt()) == jobs[:64]
    work.doubt_all()
    assert list(work.next_in_doubt()) == [*jobs[64:], *jobs[:28]]
    work.forget(jobs[28])
    assert list(work.next_in_doubt()) == jobs[29:64]


BY_WORK: list[Callable[[CostModel], Order]] = [
    PredictedRemaining,
    LeastWork,
    partial(OnTime, patience_s=1e9),
    Hrrn,
    partial(Governed, trusted_at_first=True),
]


@pytest.mark.parametrize("build", BY_WORK)
def test_a_long_prompt_that_came_before_step_times_were_known_waits_for_a_short_one(
    build: Callable[[CostModel], Order],
) -> None:
    # 7,000 tokens are 0.35 s of work, 16 are 0.8 ms.
    cost = Learning()
    order = build(cost)
    jobs = [
        make_job("long", prompt=7_000, limit=8, predicted_length=exactly(8)),
        make_job("short", prompt=16, limit=8, arrival_s=0.01, predicted_length=exactly(8)),
    ]
    nothing = StepOutcome(now_s=0.01, plan=StepPlan(), tokens={})
    for job in jobs:
        order.add(job)
        order.observe(nothing)
    cost.token_s = 5e-5
    order.observe(nothing)
    assert ids(order.top(2, 50.0)) == ids(order.rank(jobs, 50.0)) == ["short", "long"]


def after(*lengths: int) -> GittinsWork:
    """The estimator after answers of these lengths."""
    work = GittinsWork(PerToken())
    for tokens in lengths:
        work.learn(decoding(output=tokens))
    return work


def test_the_best_moment_to_give_up() -> None:
    # Until the first: 1 s, and one of two ends. Until the second: 1 s or 10 s, and both end.
    assert work_per_end_s([1, 10]) == min((1 + 1) / 1, (1 + 10) / 2)
    # Until 8: two of three end, one after 4 s. That is better than to stop at 4, or to go on to 100.
    assert work_per_end_s([4, 8, 100]) == (4 + 8 + 8) / 2 < (4 + 4 + 4) / 1 < 112 / 3
    assert work_per_end_s([7, 7, 7]) == 7
    # Each has a prompt of 20 s to compute first, whenever one gives up.
    assert work_per_end_s([21, 30]) == (21 + 30) / 2


def test_where_the_length_is_known_it_is_the_remaining_work() -> None:
    known = GittinsWork(PerToken())
    for job in (
        make_job(prompt=5, limit=999, predicted_length=exactly(80)),
        decoding(prompt=5, output=30, limit=999, predicted_length=exactly(80)),
    ):
        # A length that follows no estimate is one of 17: by a 16th more at most, and doubt of a fiftieth.
        assert known.estimate(job) == pytest.approx(RemainingWork(PerToken()).estimate(job), rel=0.08)


def test_who_was_not_one_of_the_short_goes_back() -> None:
    work = after(*[8] * 6, *[800] * 6)
    # Six of the twelve, and one that follows none, are longer: 8 tokens are worth trying, 1 s a try, 6 of 13 end.
    assert work.estimate(make_job(prompt=1, limit=9999)) == pytest.approx(13 / 6)
    # One that has 8 will have 800 or, one in seven, twice that; best is never to give up.
    assert work.estimate(decoding(output=8, limit=9999)) == pytest.approx((6 * 792 + 1592) / 8 / 7)
    # And it comes forward as it gets there: 80 more for six of seven.
    assert work.estimate(decoding(output=720, limit=9999)) == pytest.approx(80 / 8 * 7 / 6)


def test_beyond_all_that_was_seen_as_much_is_expected_again() -> None:
    # Whether or not it was predicted.
    for predicted in (None, exactly(20)):
        far = decoding(output=500, limit=9999, predicted_length=predicted)
        assert after(*[20] * 9).estimate(far) == pytest.approx(500 / 8, rel=0.2)


def test_no_possible_length_is_beyond_the_limit() -> None:
    work = after(*[100] * 9)
    assert work.estimate(decoding(output=8, limit=10)) == pytest.approx(2 / 8)
    assert work.estimate(decoding(output=10, limit=10)) == pytest.approx(1 / 8)


def test_before_any_answer_has_ended_the_limit_stands_for_it() -> None:
    assert after().estimate(make_job(prompt=1, limit=64)) == 8.0


@UNTIMED
@given(st.lists(st.integers(1, 500), min_size=1, max_size=9))
def test_no_moment_is_better_than_the_one_it_finds(works_s: list[int]) -> None:
    """Against the definition: expected work until the moment, over the chance that the answer ends by then."""

    def ratio(moment: int) -> float:
        spent_s = sum(min(work_s, moment) for work_s in works_s) / len(works_s)
        return spent_s / (sum(work_s <= moment for work_s in works_s) / len(works_s))

    found = work_per_end_s(sorted(works_s))
    assert found == pytest.approx(min(map(ratio, range(min(works_s), max(works_s) + 1))))
    assert min(works_s) <= found * (1 + 1e-9)
    assert found <= sum(works_s) / len(works_s) * (1 + 1e-9)


@UNTIMED
@given(
    median=st.floats(1, 5_000),
    factor=st.floats(1, 10),
    produced=st.integers(0, 20_000),
    limit=st.integers(1, 20_000),
)
def test_work_is_never_nothing_and_never_more_than_the_limit(
    median: float, factor: float, produced: int, limit: int
) -> None:
    produced = min(produced, limit)
    job = decoding(
        output=produced,
        limit=limit,
        predicted_length=LengthEstimate(median, median / factor, median * factor),
    )
    work_s = GittinsWork(PerToken()).estimate(job)
    assert 0 < work_s <= max(1, limit - produced) / 8 * (1 + 1e-9)
