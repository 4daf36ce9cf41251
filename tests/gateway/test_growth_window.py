from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.gateway.book.dashboard import GrowthWindow


@pytest.fixture
def recent() -> GrowthWindow[str]:
    """Totals of `a` after 0, 1, 2, 3 s: 0, 2, 5, 5; `b` joins after 2 s with 4."""
    made: GrowthWindow[str] = GrowthWindow(1, keep_s=10.0)
    made.add(0.0, {"a": (0,)})
    made.add(1.0, {"a": (2,)})
    made.add(2.0, {"a": (5,), "b": (4,)})
    made.add(3.0, {"a": (5,), "b": (4,)})
    return made


@pytest.mark.parametrize(
    ("key", "window_s", "grown"),
    [
        ("a", 1.0, 0),
        ("a", 2.0, 3),
        ("a", 2.5, 5),
        ("a", 60.0, 5),
        ("b", 1.0, 0),
        ("b", 2.0, 4),
        ("none", 2.0, 0),
    ],
)
def test_growth_is_over_the_window_or_the_time_there_is(
    recent: GrowthWindow[str], key: str, window_s: float, grown: int
) -> None:
    assert recent.growth(key, window_s) == (grown,)


def test_a_series_has_a_value_for_each_step_and_zeros_before_the_first_sample(
    recent: GrowthWindow[str],
) -> None:
    assert recent.series("a", 1.0, 5) == [(0,), (0,), (2,), (3,), (0,)]


def test_however_often_samples_come_few_are_kept_and_the_newest_counts() -> None:
    kept: GrowthWindow[str] = GrowthWindow(1, keep_s=10.0, spacing_s=0.5)
    for tick in range(100_000):  # 20 s of 5,000 a second
        kept.add(tick / 5000, {"a": (tick,)})
        assert len(kept._times_s) <= 10.0 / 0.5 + 3
    assert kept.growth("a", 1000.0) == pytest.approx((50_000,), abs=5000 * 0.5)
    assert kept.series("a", 1.0, 1) == [pytest.approx((5000,), abs=5000 * 0.5)]


def test_samples_older_than_needed_are_dropped_but_for_the_one_a_full_window_starts_from() -> None:
    kept: GrowthWindow[str] = GrowthWindow(1, keep_s=3.0)
    for second in range(100):
        kept.add(float(second), {"a": (second,)})
    assert kept.span_s(1000.0) == 3.0
    assert kept.growth("a", 1000.0) == (3,)


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40),
    st.integers(1, 20),
)
def test_steps_add_up_to_the_growth_over_all_of_them(moves: list[tuple[int, int, int]], steps: int) -> None:
    """Whatever the times of the samples: no request is counted in two steps, or in none."""
    recent: GrowthWindow[str] = GrowthWindow(2, keep_s=50.0)
    now_s, first, second = 0.0, 0, 0
    for wait_s, more, yet_more in moves:
        now_s, first, second = now_s + wait_s, first + more, second + yet_more
        recent.add(now_s, {"a": (first, second)})
    series = recent.series("a", 2.0, steps)
    assert len(series) == steps
    assert tuple(map(sum, zip(*series, strict=True))) == recent.growth("a", 2.0 * steps)
    assert all(growth >= 0 for step in series for growth in step)
