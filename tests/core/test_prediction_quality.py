from __future__ import annotations

from itertools import combinations
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.length_estimate import LengthEstimate
from headway.core.prediction_quality import (
    LEAST_STEPS,
    WINDOW_STEPS,
    PredictionQuality,
    StepTimeQuality,
    TrustRule,
    kendall_tau,
)
from headway.errors import ConfigError

PAIRS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=40)


def sign(value: float) -> int:
    return (value > 0) - (value < 0)


def shown(
    quality: PredictionQuality, pairs: list[tuple[float, int]], reach: float = 2.0
) -> PredictionQuality:
    """It after these predictions and answers; each interval is its prediction divided and multiplied by `reach`."""
    for tokens, output_tokens in pairs:
        quality.observe(LengthEstimate(tokens, tokens / reach, tokens * reach), output_tokens)
    return quality


RIGHT: list[tuple[float, int]] = [(float(tokens), tokens) for tokens in range(10, 60)]
REVERSED: list[tuple[float, int]] = [(float(tokens), 100 - tokens) for tokens in range(35, 65)]
RULE = TrustRule(window=50, min_answers=10)


def test_tau_by_hand() -> None:
    # Of 1 2 3 4 against 1 3 2 4 five of the six pairs agree and one does not: (5 - 1) / 6.
    assert kendall_tau([(1, 1), (2, 3), (3, 2), (4, 4)]) == pytest.approx(4 / 6)
    # A tie on the left leaves 5 pairs there and 6 on the right; all 5 agree.
    assert kendall_tau([(1, 1), (1, 2), (3, 3), (4, 4)]) == pytest.approx(5 / sqrt(5 * 6))


@given(PAIRS)
def test_tau_is_what_counting_every_pair_gives(pairs: list[tuple[int, int]]) -> None:
    agreement = sum(sign(a[0] - b[0]) * sign(a[1] - b[1]) for a, b in combinations(pairs, 2))
    left = sum(a[0] != b[0] for a, b in combinations(pairs, 2))
    right = sum(a[1] != b[1] for a, b in combinations(pairs, 2))
    expected = agreement / sqrt(left * right) if left and right else 0.0
    assert kendall_tau(pairs) == pytest.approx(expected)


def test_nothing_is_said_before_enough_answers() -> None:
    quality = shown(PredictionQuality(RULE), RIGHT[:9])
    assert (quality.tau, quality.coverage, quality.trusted) == (None, None, False)
    shown(quality, RIGHT[9:10])
    assert (quality.tau, quality.coverage, quality.trusted) == (1.0, 1.0, True)


def test_it_may_be_told_to_trust_at_first() -> None:
    trusting = PredictionQuality(TrustRule(window=50, min_answers=10, trusted_at_first=True))
    assert trusting.trusted
    assert not shown(trusting, REVERSED[:10]).trusted


def test_a_wrong_order_ends_trust_though_intervals_hold() -> None:
    quality = shown(shown(PredictionQuality(RULE), RIGHT), REVERSED, reach=100.0)
    assert quality.coverage == 1.0
    assert quality.tau is not None
    assert quality.tau < 0.3
    assert not quality.trusted


def test_intervals_that_do_not_hold_end_trust_though_the_order_is_right() -> None:
    quality = PredictionQuality(RULE)
    assert shown(quality, RIGHT).trusted
    # Every answer three times as long as predicted: 30 of the window's 50 are outside a factor of two.
    shown(quality, [(tokens, 3 * answer) for tokens, answer in RIGHT[:30]])
    assert quality.coverage == pytest.approx(0.4)
    assert not quality.trusted


def test_trust_comes_back_only_a_margin_above() -> None:
    within: list[tuple[float, int]] = [(float(tokens), tokens) for tokens in range(1, 11)]
    outside = [(tokens, 3 * answer) for tokens, answer in within]
    rule = TrustRule(window=20, min_answers=10, least_tau=0.0, margin=0.2)
    quality = shown(PredictionQuality(rule), within + outside)
    # Half hold, which is the least accepted: what is trusted stays so.
    assert (quality.coverage, quality.trusted) == (0.5, True)
    assert not shown(quality, outside).trusted
    # Half hold again: short of 0.7, so what is not trusted stays so too.
    assert (shown(quality, within).coverage, quality.trusted) == (0.5, False)
    assert shown(quality, within).trusted


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=70, max_size=70))
def test_only_the_last_of_them_count(pairs: list[tuple[int, int]]) -> None:
    rule = TrustRule(window=20, min_answers=10)
    whole = shown(PredictionQuality(rule), [(float(left), right) for left, right in pairs])
    late = shown(PredictionQuality(rule), [(float(left), right) for left, right in pairs[-20:]])
    assert (whole.tau, whole.coverage) == (late.tau, late.coverage)


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_answers": 1},
        {"min_answers": 300},
        {"least_tau": -0.1},
        {"least_coverage": 1.05},
        {"margin": -0.2},
    ],
)
def test_a_rule_that_cannot_be_kept_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="accepted"):
        TrustRule(**wrong)  # type: ignore[arg-type]


def watch(*actual_s: float) -> StepTimeQuality:
    """The quality after predictions of one second each and these actual times."""
    quality = StepTimeQuality()
    for seconds in actual_s:
        quality.observe(1.0, seconds)
    return quality


def test_predictions_are_trusted_until_enough_has_been_seen() -> None:
    assert watch(*[9.0] * (LEAST_STEPS - 1)).trusted
    assert watch(*[9.0] * (LEAST_STEPS - 1)).share_held is None
    assert not watch(*[9.0] * LEAST_STEPS).trusted


@pytest.mark.parametrize(("actual_s", "holds"), [(1.6, True), (1.61, False), (0.625, True), (0.62, False)])
def test_what_holds_is_within_the_factor_either_way(actual_s: float, holds: bool) -> None:
    assert watch(*[actual_s] * LEAST_STEPS).share_held == float(holds)


def test_some_pauses_between_steps_do_no_harm() -> None:
    # One in three took much longer: 10 of 16 held, more than half.
    assert watch(*[1.0, 1.0, 20.0] * 5, 1.0).trusted


def test_trust_comes_back_by_more_than_it_went() -> None:
    # 64 wrong ones, then right ones push them out: half (32) is enough to stay, 0.65 (42) to come back.
    quality = watch(*[9.0] * WINDOW_STEPS, *[1.0] * 41)
    assert not quality.trusted
    quality.observe(1.0, 1.0)
    assert quality.trusted
    for _ in range(22):  # 42 right ones stay in the window for as long as wrong ones push out wrong ones
        quality.observe(1.0, 9.0)
    assert quality.trusted
    for _ in range(11):
        quality.observe(1.0, 9.0)
    assert not quality.trusted


def test_what_is_not_known_is_not_counted() -> None:
    quality = watch()
    for predicted_s, actual_s in [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0)] * WINDOW_STEPS:
        quality.observe(predicted_s, actual_s)
    assert quality.share_held is None


@pytest.mark.parametrize("factor", [1.0, 0.5, float("nan")])
def test_a_factor_that_is_none_is_refused(factor: float) -> None:
    with pytest.raises(ConfigError, match=r"within_factor is .*; accepted: more than 1"):
        StepTimeQuality(factor)
