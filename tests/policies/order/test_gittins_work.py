"""By hand: a second a token of a prompt (`PerToken`), an eighth of one for each token to come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.length_estimate import LengthEstimate
from headway.policies.order.remaining_work import GittinsWork, RemainingWork, work_per_end_s
from tests.policies.order.per_token import PerToken, exactly
from tests.strategies import UNTIMED, decoding, make_job


def after(*lengths: int) -> GittinsWork:
    """What is known after answers of these lengths."""
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


def test_nothing_beyond_the_limit_is_to_come() -> None:
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
