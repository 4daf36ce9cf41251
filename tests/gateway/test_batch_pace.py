"""The number of batch requests in flight, and the forecasts of batches' windows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.gateway.batch.pace import (
    BLIND_OF_AN_INSTANCE,
    FIRST_OF_AN_INSTANCE,
    Load,
    Pace,
    Progress,
    deadline_s,
)


def idle(in_flight: int, **seen: int) -> Load:
    """Two instances whose engines run what is in flight, unless it says otherwise."""
    usual = {
        "instances": 2,
        "in_flight": in_flight,
        "judged": 0,
        "missed": 0,
        "running": in_flight,
        "waiting": 0,
    }
    return Load(**{**usual, **seen})


def grown(pace: Pace, looks: int) -> int:
    for second in range(looks):
        pace.look(idle(pace.allowed), float(second))
    return pace.allowed


def test_it_grows_as_long_as_engines_take_what_is_sent() -> None:
    pace = Pace(256)
    assert grown(pace, 1) == 2 * FIRST_OF_AN_INSTANCE
    assert grown(pace, 8) > 30
    assert grown(pace, 60) == 512


def test_it_does_not_grow_where_there_is_less_to_do_than_is_allowed() -> None:
    pace = Pace(256)
    before = grown(pace, 5)
    assert pace.look(idle(before - 1), 9.0) == before


def test_what_waits_in_the_engines_is_taken_back() -> None:
    pace = Pace(256)
    before = grown(pace, 12)
    # Of those that run, a sixteenth may wait.
    assert pace.look(idle(before, running=64, waiting=4 + 10), 20.0) == before - 10
    assert pace.look(idle(before - 10, running=64, waiting=4), 21.0) > before - 10


def test_it_makes_way_once_in_five_seconds_while_others_miss_targets() -> None:
    pace = Pace(256)
    before = grown(pace, 12)
    seen = {"judged": 20, "missed": 1}
    assert pace.look(idle(before, **seen), 20.0) == before // 2
    assert pace.look(idle(before // 2, **seen), 21.0) == before // 2
    assert pace.look(idle(before // 2, **seen), 26.0) == before // 4
    for second in range(30, 120):
        pace.look(idle(pace.allowed, **seen), float(second))
    assert pace.allowed == 2, "one for each instance goes on"
    assert pace.look(idle(2, judged=0, missed=0, needed=50), 200.0) == 50


def test_one_miss_among_hundreds_changes_nothing() -> None:
    pace = Pace(256)
    before = grown(pace, 12)
    assert pace.look(idle(before, judged=300, missed=1), 20.0) >= before


def test_without_a_word_of_the_engines_there_are_few() -> None:
    pace = Pace(256)
    for second in range(40):
        pace.look(Load(3, pace.allowed, 0, 0), float(second))
    assert pace.allowed == 3 * BLIND_OF_AN_INSTANCE
    assert Pace(1).look(Load(3, 0, 0, 0), 0.0) == 3


@given(
    st.lists(st.tuples(*(st.integers(0, 50) for _ in range(5)), st.none() | st.integers(0, 300)), max_size=40)
)
def test_it_stays_between_one_and_the_most_of_each_instance(looks: list[tuple[int, ...]]) -> None:
    pace = Pace(8)
    for second, (instances, in_flight, judged, missed, needed, waiting) in enumerate(looks):
        load = Load(instances, in_flight, judged, min(judged, missed), needed, waiting, waiting)
        assert instances <= pace.look(load, float(second)) <= 8 * instances


def test_a_rate_is_known_after_ten_answers_and_of_the_last_ten_minutes() -> None:
    progress = Progress()
    for _ in range(9):
        progress.answered(0.5)
    progress.worked(3.0)
    assert progress.requests_per_s is None
    progress.answered(0.5)
    assert progress.requests_per_s == pytest.approx(10 / 3)
    for _ in range(1200):
        progress.worked(1.0)
        progress.answered(2.0)
    assert progress.requests_per_s == pytest.approx(1.0, rel=0.01)
    assert progress.service_s == pytest.approx(2.0, rel=0.01)


def one_a_second() -> Progress:
    progress = Progress()
    for _ in range(100):
        progress.worked(1.0)
        progress.answered(4.0)
    return progress


def test_the_batch_that_closes_first_is_served_first() -> None:
    late, soon = one_a_second().forecasts([(500, 550.0), (100, 200.0)])
    assert soon is not None
    assert late is not None
    assert soon.ends_in_s == pytest.approx(100)
    assert late.ends_in_s == pytest.approx(600)
    assert (soon.unfinished, soon.in_time) == (0, True)
    assert (late.unfinished, late.in_time) == (50, False)
    assert late.needed_per_s == pytest.approx(600 / 550)


def test_no_window_is_foretold_before_a_rate_is_known() -> None:
    assert Progress().forecasts([(5, 1.0)]) == [None]
    assert Progress().needed([(5, 1.0)]) == 0


def test_a_minute_without_an_answer_foretells_too() -> None:
    progress = Progress()
    progress.worked(59.0)
    assert progress.requests_per_s is None
    progress.worked(2.0)
    (found,) = progress.forecasts([(100, 610.0)])
    assert found is not None
    assert found.requests_per_s == pytest.approx(1 / 61), "at most one in 61 seconds"
    assert found.unfinished == 90
    # Once a second for a minute, then nothing for ten: the rate of late is not that of before.
    progress = one_a_second()
    progress.worked(600.0)
    assert progress.requests_per_s == pytest.approx(1 / 600)


def test_a_window_that_closes_sets_a_floor() -> None:
    progress = one_a_second()
    assert progress.needed([(40, 100.0)]) == 0, "it takes less than half of the time"
    # Three in two seconds, four seconds each.
    assert progress.needed([(150, 100.0)]) == 6
    assert progress.needed([(40, 1000.0), (150, 100.0)]) == 6


def test_deadlines_come_nearer_as_a_window_closes() -> None:
    assert deadline_s(100, 1000.0, 10, 1.0) == 1000.0
    assert deadline_s(750, 1000.0, 10, 1.0) == pytest.approx((1000 + 10 / 750 * 1000) / 2)
    assert deadline_s(2000, 1000.0, 10, 1.0) == pytest.approx(5.0)
    assert deadline_s(2000, 1000.0, 10, None) == 1000.0
    assert deadline_s(5, 1000.0, 10, 0.001) == 1000.0


@given(st.integers(1, 10**5), st.floats(-10, 10**6), st.integers(0, 500), st.none() | st.floats(1e-6, 1e3))
def test_a_deadline_is_within_the_window(
    left: int, left_s: float, in_flight: int, rate: float | None
) -> None:
    assert 1.0 <= deadline_s(left, left_s, in_flight, rate) <= max(1.0, left_s) * (1 + 1e-9)
