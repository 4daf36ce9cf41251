from __future__ import annotations

import numpy as np
import pytest
from headway_reproduce.magnus.forest import LengthForest, worth_learning

pytest.importorskip("lightgbm", reason="forests are LightGBM's")


def test_the_papers_rule_by_hand() -> None:
    # Off by more than 10 tokens, and by more than 10 % of the answer.
    assert worth_learning(100, 112)
    assert not worth_learning(102, 112)
    assert not worth_learning(1000, 1111)  # 111 of 1,111 is 9.99 %
    assert worth_learning(1000, 1112)
    assert worth_learning(112, 100)
    assert not worth_learning(12, 3)


CHANCE = np.random.default_rng(5)
ROWS = CHANCE.uniform(0, 1, size=(3000, 3)).astype(np.float32)
NOISE = CHANCE.normal(size=3000)
TOKENS = np.maximum(1.0, 100 * np.exp(2 * ROWS[:, 0] + 0.3 * NOISE))
UNSEEN = CHANCE.uniform(0.05, 0.95, size=(500, 3)).astype(np.float32)
EXPECTED = 100 * np.exp(2 * UNSEEN[:, 0])


def test_a_law_is_found_in_noise() -> None:
    answers = LengthForest(ROWS, TOKENS).ask(UNSEEN)
    assert answers.shape == (500,)
    assert np.median(np.abs(answers / EXPECTED - 1)) < 0.1


def test_answers_are_of_a_token_at_least() -> None:
    tiny = LengthForest(ROWS[:60], CHANCE.uniform(0.1, 2.0, 60))
    assert (tiny.ask(UNSEEN) >= 1).all()


def test_the_same_rows_make_the_same_forest() -> None:
    one, other = (LengthForest(ROWS[:500], TOKENS[:500]).ask(UNSEEN) for _ in range(2))
    assert np.array_equal(one, other)


def test_where_requests_tell_nothing_the_mean_is_the_answer() -> None:
    alike = LengthForest(np.ones((60, 3), dtype=np.float32), TOKENS[:60])
    assert alike.ask(UNSEEN[:1])[0] == pytest.approx(TOKENS[:60].mean(), rel=0.05)
