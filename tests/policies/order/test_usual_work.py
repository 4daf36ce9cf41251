from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.policies.order.predicted_remaining import UsualWork
from tests.strategies import UNTIMED


def learned(*steps: Sequence[float]) -> UsualWork:
    """Those who came before each step."""
    usual = UsualWork()
    for works_s in steps:
        for work_s in works_s:
            usual.learn(work_s)
        usual.settle()
    return usual


def test_work_is_in_seconds_before_the_first_step_and_then_in_times_the_mean() -> None:
    assert learned().times(3.0) == 3.0
    assert learned([2.0, 6.0]).times(8.0) == 2.0


def test_the_unit_stays_until_newcomers_bring_twice_as_much_or_half() -> None:
    usual = learned([4.0])
    # The means are 5, 6 and 9; with seven of 2 s more 50/11, more than half of 9, and with the eighth 52/12.
    comes = [
        (6.0, False, 4.0),
        (8.0, False, 4.0),
        (18.0, True, 9.0),
        *7 * [(2.0, False, 9.0)],
        (2.0, True, 52 / 12),
    ]
    for work_s, changed, unit_s in comes:
        usual.learn(work_s)
        assert usual.settle() is changed
        assert usual.times(unit_s) == pytest.approx(1.0)
    assert not usual.settle()


def test_four_hundred_newcomers_are_all_that_counts() -> None:
    assert learned([1.0] * 9000, [3.0] * 400).times(3.0) == 1.0
    # One by one those of old fade; the unit follows once the mean is twice what it was.
    assert learned([1.0] * 9000, *([3.0] for _ in range(800))).times(3.0) == pytest.approx(1.5, rel=0.1)


def test_no_work_is_no_unit() -> None:
    assert learned([0.0]).times(3.0) == 3.0


@UNTIMED
@given(works_s=st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=5))
def test_those_of_one_step_count_alike_whoever_came_first(works_s: list[float]) -> None:
    assert len({learned([1.0], order).times(1.0) for order in permutations(works_s)}) == 1
