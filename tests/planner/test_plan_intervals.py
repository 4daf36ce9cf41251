from __future__ import annotations

from math import inf

import pytest

from headway.planner.objective import Interval, difference, student_t


def test_an_interval_by_hand() -> None:
    # Mean 2, deviation 1, three samples: 4.303 x 1 / sqrt(3) = 2.4843.
    interval = Interval.of([1.0, 2.0, 3.0])
    assert interval.mean == 2.0
    assert interval.half == pytest.approx(2.4843, abs=1e-4)
    assert interval.low == pytest.approx(-0.4843, abs=1e-4)


def test_one_sample_says_nothing_of_how_sure_it_is() -> None:
    assert Interval.of([3.0]) == Interval(3.0, -inf, inf)


@pytest.mark.parametrize(
    ("freedom", "published"),
    [(1, 12.706), (10, 2.228), (11, 2.201), (12, 2.179), (13, 2.160), (20, 2.086), (60, 2.000)],
)
def test_students_percentiles_are_the_published_ones(freedom: int, published: float) -> None:
    assert student_t(freedom) == pytest.approx(published, abs=1e-3)


def test_what_two_share_cancels_out() -> None:
    # Each sample is 0.5 more than the other's, however far the samples are from one another.
    assert difference([10.5, 0.5, 3.5], [10.0, 0.0, 3.0]) == Interval(0.5, 0.5, 0.5)
