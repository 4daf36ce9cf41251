from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.predict.steps.fitting import UsualError, mape, trust_in
from tests.strategies import UNTIMED


def usual(*ratios: float) -> UsualError:
    """The error after measurements of these multiples of a prediction of one second."""
    error = UsualError()
    for ratio in ratios:
        error.note(1.0, ratio)
    return error


def test_nothing_is_cut_before_it_is_known_what_is_usual() -> None:
    error = usual(*[1.1] * 15)
    assert (error.low, error.high) == (1.1, 1.1)
    assert error.taken(1.0, 4.9) == 4.9
    assert (UsualError().low, UsualError().high) == (1.0, 1.0)


def test_a_stall_counts_as_one_at_the_edge_of_what_is_usual() -> None:
    # Every ratio is 10 % off: the spread is 0.1, and four of it are the edge.
    error = usual(*[0.9, 1.1] * 8)
    assert (error.low, error.high) == (0.9, 1.1)
    assert error.taken(2.0, 50.0) == pytest.approx(2.8)
    assert error.taken(2.0, 0.1) == pytest.approx(1.2)
    assert error.taken(2.0, 2.7) == 2.7


def test_the_fourth_in_a_row_on_one_side_is_believed() -> None:
    error = usual(*[0.9, 1.1] * 8)
    assert [error.taken(1.0, 3.0) for _ in range(5)] == pytest.approx([1.4, 1.4, 1.4, 3.0, 3.0])
    assert error.taken(1.0, 1.0) == 1.0  # the run is over
    assert [error.taken(1.0, seconds) for seconds in (3.0, 3.0, 0.1, 3.0)] == pytest.approx(
        [1.4, 1.4, 0.6, 1.4]
    )


def test_exact_predictions_leave_a_hundredth() -> None:
    assert usual(*[1.0] * 16).taken(1.0, 9.0) == pytest.approx(1.04)


def test_of_a_few_those_far_off_are_trusted_less() -> None:
    # Half of them are within 2 %: beyond 4 % trust falls as the error grows.
    assert trust_in([1.0, 1.02, 0.98, 1.08, 1.4]) == pytest.approx([1.0, 1.0, 1.0, 0.5, 0.1])


@UNTIMED
@given(st.lists(st.floats(0.01, 100), max_size=80), st.floats(1e-6, 1e3), st.floats(1e-6, 1e3))
def test_what_is_taken_lies_between_the_prediction_and_the_measurement(
    ratios: list[float], expected_s: float, seconds: float
) -> None:
    error = usual(*ratios)
    low, high = sorted((expected_s, seconds))
    assert low <= error.taken(expected_s, seconds) <= high
    assert error.low <= error.high


def test_it_is_the_mean_of_what_predictions_are_off_by_over_what_was_measured() -> None:
    # |8/10 - 1| = 0.2 and |3/2 - 1| = 0.5.
    assert mape([(10.0, 8.0), (2.0, 3.0)]) == pytest.approx(0.35)


def test_of_nothing_there_is_none() -> None:
    assert mape([]) is None
