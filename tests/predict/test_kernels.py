from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.predict.steps.kernels import Surface
from tests.strategies import UNTIMED

SQUARE = Surface(axes=((0.0, 2.0), (0.0, 4.0)), values=(0.0, 1.0, 2.0, 5.0))


@pytest.mark.parametrize(("point", "log2_factor"), [
    ((1, 1), 0.0),
    ((4, 1), 2.0),
    ((1, 16), 1.0),
    ((2, 1), 1.0),
    ((2, 4), 2.0),  # in the middle of both axes: the mean of the corners, (0 + 1 + 2 + 5) / 4
    ((4, 1e9), 5.0),
    ((0.01, 0.01), 0.0),
])  # fmt: skip
def test_a_surface_by_hand(point: tuple[float, float], log2_factor: float) -> None:
    assert SQUARE.at(*point) == pytest.approx(2**log2_factor)


def test_one_and_three_axes() -> None:
    line = Surface(axes=((0.0, 1.0),), values=(0.0, 3.0))
    assert line.at(2) == 8
    cube = Surface(axes=((0.0, 1.0),) * 3, values=tuple(map(float, range(8))))
    assert cube.at(2, 1, 2) == 2**5


@UNTIMED
@given(point=st.tuples(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6)))
def test_it_stays_between_its_least_and_greatest_value(point: tuple[float, float]) -> None:
    assert 1 <= SQUARE.at(*point) <= 2**5 * (1 + 1e-12)


def test_as_many_quantities_as_axes_are_wanted() -> None:
    with pytest.raises(TypeError):
        SQUARE.at(1)
