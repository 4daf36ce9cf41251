from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.predict.steps.batch_time import BatchRow, BatchTimeModel
from headway.routing.batch_queue import BatchTime

ROW = st.tuples(st.integers(1, 20), st.integers(1, 1000), st.integers(1, 1000), st.floats(0.1, 100))


def law(size: int, prompt_tokens: int, output_tokens: int) -> float:
    return 0.02 * output_tokens + 0.001 * size * prompt_tokens


GRID = [(*cell, law(*cell)) for cell in product((1, 7, 18), (10, 500, 1000), (10, 500, 1000))]


def test_the_mean_of_five_neighbours_by_hand() -> None:
    # One feature varies, so distance is in output tokens alone: the five nearest to 30 are 10 to 50.
    model = BatchTimeModel([(4, 100, 10 * step, float(step * step)) for step in range(1, 9)], weighted=False)
    assert model.predict(4, 100, 30) == pytest.approx((1 + 4 + 9 + 16 + 25) / 5)


def test_nearer_ones_count_more_by_hand() -> None:
    # Spread of (0, 10) is 5: 2 is 0.4 and 1.6 away, so 0 counts four times as much: (4 x 1 + 1 x 6) / 5.
    model = BatchTimeModel([(1, 1, 0, 1.0), (1, 1, 10, 6.0)])
    assert model.predict(1, 1, 2) == pytest.approx(2.0)


def test_a_batch_of_the_grid_takes_what_the_grid_says() -> None:
    model: BatchTime = BatchTimeModel(GRID)
    assert len(GRID) == 27
    for size, prompt_tokens, output_tokens, seconds in GRID:
        assert model.predict(size, prompt_tokens, output_tokens) == pytest.approx(seconds, rel=0.02)


def test_only_batches_that_were_badly_estimated_are_learned() -> None:
    # (7, 500, 500) is 13.5 s on the grid. Learned: off by more than 2 s and more than 20 % of what it took.
    near, seconds_off, share_off = 13.5 * 1.1, 13.5 + 2.5, 0.05
    for taken_s, learned in ((near, 0), (seconds_off, 0), (13.5 + 4.0, 1), (13.5 - 2.6, 1)):
        model = BatchTimeModel(GRID)
        model.observe(7, 500, 500, taken_s)
        model.refit()
        assert model.num_rows == 27 + learned, taken_s
    short = BatchTimeModel(GRID)
    expected = short.predict(1, 10, 10)
    short.observe(1, 10, 10, expected + share_off)  # a quarter more, but no two seconds
    short.refit()
    assert short.num_rows == 27


def test_it_learns_a_slower_machine_at_its_next_fit() -> None:
    model = BatchTimeModel(GRID)
    for _ in range(5):
        model.observe(7, 500, 500, 60.0)
    assert model.predict(7, 500, 500) == pytest.approx(13.5, rel=0.02)
    model.refit()
    assert model.predict(7, 500, 500) > 40.0


def test_a_fit_is_due_every_two_minutes_if_batches_ended() -> None:
    model = BatchTimeModel(GRID)
    assert not model.due(1e9)
    model.observe(7, 500, 500, 60.0)
    assert [model.due(now_s) for now_s in (0.0, 119.0, 120.0)] == [False, False, True]
    model.refit(120.0)
    model.observe(7, 500, 500, 60.0)
    assert [model.due(now_s) for now_s in (239.0, 240.0)] == [False, True]


def test_the_oldest_served_batch_leaves_and_the_grid_stays() -> None:
    model = BatchTimeModel(GRID)
    for round_ in range(3):
        for number in range(3000):
            model.observe(1 + number % 40, 2000 + number, 5000 + round_, 1000.0 * (1 + number % 7))
        model.refit()
    assert model.num_rows == 4096
    assert model.predict(1, 10, 10) == pytest.approx(law(1, 10, 10), rel=0.05)


@given(st.lists(ROW, min_size=1, max_size=40), ROW)
def test_neighbours_are_those_that_sorting_finds(rows: list[BatchRow], asked: BatchRow) -> None:
    table = np.array(rows)
    spreads = table[:, :3].std(axis=0)
    scaled = (table[:, :3] - np.array(asked[:3])) / np.where(spreads > 0, spreads, 1.0)
    distances = np.sqrt((scaled**2).sum(axis=1))
    order = np.argsort(distances, kind="stable")
    count = min(5, len(rows))
    limit = distances[order[count - 1]]
    answer = BatchTimeModel(rows, weighted=False).predict(*asked[:3])
    if np.isclose(distances, limit, atol=1e-6).sum() == 1:  # ties may be broken either way
        assert answer == pytest.approx(table[order[:count], 3].mean(), rel=1e-6)
    assert table[:, 3].min() - 1e-9 <= answer <= table[:, 3].max() + 1e-9


@pytest.mark.parametrize("rows", [[], [(1, 1, 1, 1.0)] * 4096])
def test_a_grid_that_is_no_start_is_refused(rows: list[BatchRow]) -> None:
    with pytest.raises(ConfigError, match="accepted: 1 to 4095"):
        BatchTimeModel(rows)


def test_no_neighbours_are_refused() -> None:
    with pytest.raises(ConfigError, match="neighbours is 0"):
        BatchTimeModel(GRID, neighbours=0)
