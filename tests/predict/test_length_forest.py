from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.predict.lengths.forest import (
    LengthForest,
    LengthInterval,
    LengthRows,
    LengthSettings,
    parsed_settings,
)


def test_the_papers_rule_by_hand() -> None:
    settings = LengthSettings()
    # Off by more than 10 tokens, and by more than 10 % of the answer.
    assert settings.worth_learning(100, 112)
    assert not settings.worth_learning(102, 112)
    assert not settings.worth_learning(1000, 1111)  # 111 of 1,111 is 9.99 %
    assert settings.worth_learning(1000, 1112)
    assert settings.worth_learning(112, 100)
    assert not settings.worth_learning(12, 3)


def test_settings_are_read_with_their_types() -> None:
    read = parsed_settings("p", "forest=rf,trees=7,period_s=2.5")
    assert read == LengthSettings(forest="rf", trees=7, period_s=2.5)
    assert parsed_settings("p", "") == LengthSettings()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("depth=3", "p has no setting 'depth=3'; accepted"),
        ("trees", "p has no setting 'trees'"),
        ("trees=1,trees=2", "given trees twice"),
        ("trees=many", "p, trees is 'many'; accepted: a value of type int"),
        ("trees=0", "trees is 0; accepted: 1 or more"),
        ("period_s=nan", "period_s is nan"),
        ("forest=tall", "forest is 'tall'; accepted: quantile, rf"),
        ("first_answers=30,max_rows=29", "max_rows is 29"),
    ],
)
def test_what_is_not_accepted_is_named(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parsed_settings("p", text)


def filled(count: int, max_rows: int, seed: int = 0) -> LengthRows:
    rows = LengthRows(2, max_rows, seed)
    for number in range(count):
        rows.add(np.array([number, -number], dtype=np.float32), float(number))
    return rows


@given(count=st.integers(0, 300), max_rows=st.integers(1, 200), seed=st.integers(0, 5))
def test_rows_stay_whole_and_few(count: int, max_rows: int, seed: int) -> None:
    features, tokens = filled(count, max_rows, seed).copy()
    assert features.shape == (min(count, max_rows), 2)
    assert len(set(tokens)) == len(tokens)  # each added once, each kept at most once
    assert (features[:, 0] == tokens).all()
    assert (features[:, 1] == -tokens).all()
    if count <= max_rows:
        assert list(tokens) == list(range(count))
    else:
        assert count - 1 in tokens  # the newest is always kept


def test_old_rows_fade_instead_of_falling_off() -> None:
    _, tokens = filled(2000, 1000).copy()
    # Of 1,000 rows each stays with probability (1 - 1/1000)^1000 = 0.37 after another 1,000 came.
    assert 320 < (tokens < 1000).sum() < 420


def test_the_same_answers_leave_the_same_rows() -> None:
    assert np.array_equal(filled(500, 50, seed=4).copy()[1], filled(500, 50, seed=4).copy()[1])
    assert not np.array_equal(filled(500, 50, seed=4).copy()[1], filled(500, 50, seed=5).copy()[1])


def test_a_copy_does_not_change_any_more() -> None:
    rows = filled(10, 10)
    _, tokens = rows.copy()
    rows.add(np.zeros(2, dtype=np.float32), 99.0)
    assert 99.0 not in tokens


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
