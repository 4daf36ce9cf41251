"""One place for means and quantiles: as numpy's, exact where order could matter, None where a value is missing."""

from __future__ import annotations

from math import inf
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.statistics import Interval, deviation, known, mean, mean_of_all, mean_of_known, quantile, rank

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


@given(VALUES, st.floats(0, 1))
def test_a_quantile_is_numpys_to_the_last_digit(values: list[float], share: float) -> None:
    assert quantile(values, share) == float(np.quantile(values, share))


@given(VALUES, st.floats(0.01, 1))
def test_a_rank_is_the_least_value_that_its_share_does_not_exceed(values: list[float], share: float) -> None:
    found = rank(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) < share * len(values)


@given(VALUES, st.randoms(use_true_random=False))
def test_a_mean_does_not_depend_on_the_order(values: list[float], chance: Random) -> None:
    assert mean(chance.sample(values, len(values))) == mean(values)


def test_missing_values() -> None:
    assert known([1.0, None, 3.0]) == [1.0, 3.0]
    assert mean_of_known([1.0, None, 3.0]) == 2.0
    assert mean_of_known([None]) is None
    assert mean_of_all([1.0, None]) is None
    assert mean_of_all(iter([1.0, 3.0])) == 2.0
    assert mean_of_all([]) is None
    assert deviation([1.0]) is None


def test_an_interval_by_hand() -> None:
    found = Interval.of([1.0, 2.0, 3.0])  # deviation 1, Student's t of two degrees of freedom 4.303
    assert found.half == pytest.approx(4.303 / 3**0.5)
    assert found.mean == 2.0
    assert found.low == pytest.approx(2.0 - found.half)
    assert Interval.of([5.0]) == Interval(5.0, -inf, inf)
