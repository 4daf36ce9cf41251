from __future__ import annotations

import pytest

from headway.core.prediction_quality import LEAST_STEPS, WINDOW_STEPS, StepTimeQuality
from headway.errors import ConfigError


def watch(*actual_s: float) -> StepTimeQuality:
    """What is thought of predictions of one second each."""
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


def test_three_times_too_short_or_too_long_is_not_trusted() -> None:
    assert not watch(*[3.0] * LEAST_STEPS).trusted
    assert not watch(*[1 / 3] * LEAST_STEPS).trusted


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
