from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.predict.lengths.ridge import LastErrors, OnlineRidge, weighted_quantiles

ENDLESS = 1e12
"""A memory that forgets nothing."""


@given(seed=st.integers(0, 1000), count=st.integers(1, 40))
def test_weights_are_those_of_ridge_regression(seed: int, count: int) -> None:
    chance = np.random.default_rng(seed)
    inputs, values, noise = chance.normal(size=(count, 3)), chance.normal(size=count), 0.5
    variances, first = np.array([1.0, 2.0, 0.1]), np.array([1.0, 0.0, -1.0])
    ridge = OnlineRidge(variances, ENDLESS, first)
    for row, value in zip(inputs, values, strict=True):
        ridge.observe(row, value, noise)
    precision = np.diag(1 / variances) + inputs.T @ inputs / noise
    right = np.diag(1 / variances) @ first + inputs.T @ values / noise
    assert ridge.weights == pytest.approx(np.linalg.solve(precision, right), abs=1e-6)
    assert ridge.covariance == pytest.approx(np.linalg.inv(precision), abs=1e-6)


def test_the_first_weights_are_not_changed_by_what_is_learned() -> None:
    first = np.array([1.0, 2.0])
    ridge = OnlineRidge(np.ones(2), ENDLESS, first)
    ridge.observe(np.array([1.0, 0.0]), 5.0, 1.0)
    assert list(first) == [1.0, 2.0]
    assert ridge.weights == pytest.approx([3.0, 2.0])  # half of the way: prior and noise weigh alike


def test_after_its_memory_a_changed_law_is_learned_as_fast_as_the_first() -> None:
    forgetful, lasting = OnlineRidge(np.ones(1), 100), OnlineRidge(np.ones(1), ENDLESS)
    for ridge in (forgetful, lasting):
        for value in [1.0] * 1000 + [3.0] * 50:
            ridge.observe(np.ones(1), value, 1.0)
    assert forgetful.weights[0] > 2.9
    assert lasting.weights[0] < 1.2


def test_weighted_quantiles_by_hand() -> None:
    values = np.array([30.0, 10.0, 20.0])
    # Alike, each third of the weight has its value in the middle: at 1/6, 1/2 and 5/6.
    assert weighted_quantiles(values, np.ones(3), (0.0, 1 / 6, 1 / 3, 0.5, 1.0)) == pytest.approx(
        [10, 10, 15, 20, 30]
    )
    # 10 has half of the weight: middles at 1/4, 5/8 and 7/8.
    assert weighted_quantiles(values, np.array([1.0, 2.0, 1.0]), (0.25, 0.625)) == pytest.approx([10, 20])


def test_of_two_hundred_errors_the_oldest_goes() -> None:
    last = LastErrors()
    assert [len(known) for known in last.known] == [0, 0]
    for number in range(250):
        last.add(float(number), -float(number))
    places, errors = last.known
    assert sorted(places) == list(range(50, 250))
    assert np.array_equal(errors, -places)
