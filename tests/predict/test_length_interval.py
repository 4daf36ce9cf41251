from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.predict.length_interval import LengthInterval

POINT = np.array([100.0, 100.0, 100.0])


def lived(ratios: list[float]) -> LengthInterval:
    """After answers of 1,000 tokens times these, each predicted as 1,000."""
    interval = LengthInterval()
    for ratio in ratios:
        interval.ended(np.array([1000.0] * 3), round(1000 * ratio))
    return interval


def test_ends_are_the_quantiles_of_the_ratios_by_hand() -> None:
    # 11 answers at 50 to 150 % of their predictions: the second lowest and the second highest are the tails.
    interval = LengthInterval()
    tokens = np.array([50.0 + 10 * step for step in range(11)])
    interval.held_out(np.full((11, 3), 100.0), tokens)
    estimate = interval.estimate(POINT, limit=1000)
    assert (estimate.low_tokens, estimate.tokens, estimate.high_tokens) == pytest.approx((60.0, 100.0, 140.0))


def test_an_interval_that_is_too_narrow_is_widened_and_one_too_wide_narrowed() -> None:
    tokens = np.linspace(50, 150, 101)
    for low, high in ((95.0, 105.0), (1.0, 1000.0)):
        interval = LengthInterval()
        raw = np.tile((low, 100.0, high), (101, 1))
        interval.held_out(raw, tokens)
        estimate = interval.estimate(raw[0], limit=10_000)
        assert (estimate.low_tokens, estimate.high_tokens) == pytest.approx((60.0, 140.0))


def test_answers_of_service_take_over_from_those_held_out() -> None:
    interval = lived([1.0] * 99)
    assert not interval.settled
    interval.held_out(np.tile(POINT, (20, 1)), np.linspace(50, 150, 20))
    assert interval.estimate(POINT, 1000).high_tokens > 120
    interval.ended(POINT, 100)
    assert interval.settled
    assert interval.estimate(POINT, 1000).high_tokens == 100.0
    interval.held_out(np.tile(POINT, (20, 1)), np.linspace(50, 150, 20))
    assert interval.estimate(POINT, 1000).high_tokens == 100.0


def test_it_follows_answers_that_become_uncertain() -> None:
    chance = np.random.default_rng(3)
    steady, wild = [1.0] * 500, list(np.exp(chance.normal(size=500)))
    assert lived(steady).estimate(POINT, 10_000).high_tokens == pytest.approx(100.0)
    # One in ten of a standard normal is above 1.2816.
    assert lived(steady + wild).estimate(POINT, 10_000).high_tokens == pytest.approx(
        100 * np.exp(1.2816), rel=0.15
    )


def test_an_estimate_stays_within_one_and_the_limit() -> None:
    interval = lived([0.5, 2.0] * 50)
    estimate = interval.estimate(np.array([0.4, 900.6, 4000.0]), limit=512)
    assert (estimate.low_tokens, estimate.tokens, estimate.high_tokens) == (1.0, 512.0, 512.0)


@given(
    st.lists(st.floats(0.01, 100), max_size=200),
    st.lists(st.floats(1, 1e5), min_size=3, max_size=3),
    st.integers(0, 100_000),
)
def test_an_estimate_is_a_whole_number_within_its_interval(
    ratios: list[float], raw: list[float], limit: int
) -> None:
    estimate = lived(ratios).estimate(np.array(sorted(raw)), limit)
    assert 1 <= estimate.low_tokens <= estimate.tokens <= estimate.high_tokens <= max(1, limit)
    assert estimate.tokens == int(estimate.tokens)


@given(st.lists(st.floats(0.01, 100), max_size=150))
def test_what_was_kept_comes_back(ratios: list[float]) -> None:
    interval, other = lived(ratios), LengthInterval()
    other.restore(interval.state())
    assert other.estimate(POINT, 10_000) == interval.estimate(POINT, 10_000)
    assert other.settled == interval.settled
