from __future__ import annotations

import numpy as np
import pytest

from headway.predict.length_forest import LengthForest
from headway.predict.length_settings import LengthSettings

CHANCE = np.random.default_rng(5)
ROWS = CHANCE.uniform(0, 1, size=(3000, 3)).astype(np.float32)
NOISE = CHANCE.normal(size=3000)
TOKENS = np.maximum(1.0, 100 * np.exp(2 * ROWS[:, 0] + 0.3 * NOISE))
UNSEEN = CHANCE.uniform(0.05, 0.95, size=(500, 3)).astype(np.float32)
EXPECTED = 100 * np.exp(2 * UNSEEN[:, 0])


@pytest.mark.parametrize("forest", ["quantile", "rf"])
def test_a_law_is_found_in_noise(forest: str) -> None:
    answers = LengthForest(ROWS, TOKENS, LengthSettings(forest=forest)).ask(UNSEEN)
    assert answers.shape == (500, 3)
    error = np.abs(answers[:, 1] / EXPECTED - 1)
    assert np.median(error) < 0.1


def test_quantiles_are_a_normals_tails() -> None:
    answers = LengthForest(ROWS, TOKENS, LengthSettings()).ask(UNSEEN)
    # One in ten of a normal variable is below -1.2816: a factor of exp(0.3 x 1.2816) = 1.47 either way.
    for column, factor in ((0, 1 / 1.47), (2, 1.47)):
        assert np.median(answers[:, column] / EXPECTED) == pytest.approx(factor, rel=0.08)


def test_a_random_forest_has_no_interval_of_its_own() -> None:
    answers = LengthForest(ROWS[:200], TOKENS[:200], LengthSettings(forest="rf", trees=5)).ask(UNSEEN)
    assert (answers[:, 0] == answers[:, 1]).all()
    assert (answers[:, 1] == answers[:, 2]).all()


@pytest.mark.parametrize("forest", ["quantile", "rf"])
def test_answers_ascend_from_one(forest: str) -> None:
    tiny = LengthForest(ROWS[:60], CHANCE.integers(1, 3, 60).astype(float), LengthSettings(forest=forest))
    answers = tiny.ask(UNSEEN)
    assert (answers >= 1).all()
    assert (np.diff(answers, axis=1) >= 0).all()


@pytest.mark.parametrize("forest", ["quantile", "rf"])
def test_the_same_rows_make_the_same_forest(forest: str) -> None:
    settings = LengthSettings(forest=forest, trees=10)
    one, other = (LengthForest(ROWS[:500], TOKENS[:500], settings).ask(UNSEEN) for _ in range(2))
    assert np.array_equal(one, other)


@pytest.mark.parametrize("forest", ["quantile", "rf"])
def test_where_requests_tell_nothing_the_middle_is_the_usual_answer(forest: str) -> None:
    settings, tokens = LengthSettings(forest=forest), TOKENS[:60]
    usual = np.median(tokens) if forest == "quantile" else tokens.mean()
    alike = LengthForest(np.ones((60, 3), dtype=np.float32), tokens, settings)
    assert alike.ask(UNSEEN[:1])[0, 1] == pytest.approx(usual, rel=0.05)
    assert LengthForest(ROWS[:60], np.full(60, 100.0), settings).ask(UNSEEN[:1]) == pytest.approx(100.0)


def test_one_row_is_enough_to_answer_with() -> None:
    answers = LengthForest(ROWS[:1], np.array([7.0]), LengthSettings()).ask(UNSEEN[:2])
    assert answers == pytest.approx(np.full((2, 3), 7.0))
