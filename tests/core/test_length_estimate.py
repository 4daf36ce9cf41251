from __future__ import annotations

from math import ceil, exp, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.length_estimate import LengthEstimate


@st.composite
def estimates(draw: st.DrawFn) -> LengthEstimate:
    tokens = draw(st.floats(1, 1e5))
    return LengthEstimate(tokens, tokens / draw(st.floats(1, 50)), tokens * draw(st.floats(1, 50)))


def test_the_ends_of_the_interval_are_its_quantiles() -> None:
    estimate = LengthEstimate(100.0, 40.0, 300.0)
    assert estimate.at(0.5) == pytest.approx(100.0)
    assert estimate.at(0.1) == pytest.approx(40.0)
    assert estimate.at(0.9) == pytest.approx(300.0)
    # Half way to the tail in deviations is the geometric mean of median and end.
    half_way = 0.7391567  # of a normal variable, P(z <= 1.28155 / 2)
    assert estimate.at(half_way) == pytest.approx(sqrt(100.0 * 300.0), rel=1e-4)


def test_what_is_left_of_an_answer_that_reached_its_median() -> None:
    # Of those longer than the median half are longer than the 3/4 quantile: z = 0.67449, against 1.28155 at 0.9. It is
    # one that follows no estimate, with as much to come as it has, with probability 0.01 / (0.01 + 0.99 x 0.5).
    estimate = LengthEstimate(100.0, 40.0, 300.0)
    follows = 100.0 * (300.0 / 100.0) ** (0.67449 / 1.28155) - 100.0
    doubt = 0.01 / 0.505
    expected = (1 - doubt) * follows + doubt * 100.0
    assert estimate.remaining_tokens(100) == pytest.approx(expected, rel=1e-4)


def test_an_answer_far_beyond_a_narrow_estimate_is_not_nearly_done() -> None:
    # 20 tokens within a tenth, and it has 200: far outside. As many are expected again.
    estimate = LengthEstimate(20.0, 18.0, 22.0)
    assert estimate.remaining_tokens(200) == pytest.approx(200.0, rel=0.01)
    # At the edge of the interval, one in ten that follow it get here, and hardly one that does not.
    assert estimate.remaining_tokens(22) < 4.0


@given(estimates())
def test_the_farther_it_is_outgrown_the_more_is_expected(estimate: LengthEstimate) -> None:
    far = ceil(estimate.high_tokens * 50)
    assert estimate.remaining_tokens(2 * far) > estimate.remaining_tokens(far)


def test_hints_never_say_less_than_one_token() -> None:
    assert LengthEstimate(0.8, 0.4, 1.6).said_tokens == (1.0, 1.0, 1.6)


def test_without_an_interval_a_factor_of_two_is_allowed_for() -> None:
    assert LengthEstimate.around(50.0) == LengthEstimate(50.0, 25.0, 100.0)
    assert LengthEstimate.around(1.0).low_tokens == 1.0


def test_an_exact_estimate_that_was_wrong_still_expects_something() -> None:
    exact = LengthEstimate(100.0, 100.0, 100.0)
    assert exact.remaining_tokens(90) == pytest.approx(10.0, abs=1.0)
    assert 0 < exact.remaining_tokens(101) < exact.remaining_tokens(100_000)


@given(estimates(), st.integers(0, 200_000))
def test_there_is_always_something_to_come(estimate: LengthEstimate, produced: int) -> None:
    assert 0 < estimate.remaining_tokens(produced) < float("inf")


@given(estimates(), st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_more_confidence_never_means_fewer_tokens(estimate: LengthEstimate, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert estimate.at(low) <= estimate.at(high)


def test_far_in_the_tail_the_two_formulas_meet() -> None:
    estimate = LengthEstimate(100.0, 50.0, 200.0)
    spread = 0.693147 / 1.28155
    at_limit = round(100.0 * exp(4.0 * spread))
    below, above = estimate.remaining_tokens(at_limit - 1), estimate.remaining_tokens(at_limit + 1)
    assert above == pytest.approx(below, rel=0.1)


def test_lengths_that_stand_for_an_estimate() -> None:
    # Five equally likely parts, by their middles; of an answer that has 40 tokens, those that are longer.
    estimate = LengthEstimate(100.0, 40.0, 300.0)
    middles = [estimate.at(share) for share in (0.1, 0.3, 0.5, 0.7, 0.9)]
    assert estimate.longer_than(0, 5) == pytest.approx(middles)
    assert (middles[0], middles[2], middles[4]) == pytest.approx((40.0, 100.0, 300.0))
    assert estimate.longer_than(41, 5) == pytest.approx(middles[1:])
    assert estimate.longer_than(301, 5) == []


@given(estimates(), st.integers(0, 10**7), st.integers(1, 40))
def test_they_are_longer_and_ascend(estimate: LengthEstimate, produced: int, points: int) -> None:
    longer = estimate.longer_than(produced, points)
    assert longer == sorted(longer)
    assert all(tokens > produced for tokens in longer)
    assert len(longer) == points or produced
