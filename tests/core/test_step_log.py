from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.explain.step_log import ChangeLog, StepLog


def test_the_last_steps_are_kept_and_the_older_ones_forgotten() -> None:
    log = StepLog(kept=4)
    for step, width in enumerate([9, 1, 5, 3, 2, 7]):
        log.add(float(step), width)
    assert log.count == 6
    assert log.times_s(10) == [2.0, 3.0, 4.0, 5.0]
    assert log.times_s(2) == [4.0, 5.0]
    assert log.widths(3, 5) == (2, 3)
    assert log.widths(0, 6) == (2, 7)  # of steps 2 to 5: the wide first one is forgotten
    assert log.widths(0, 2) is None
    assert log.widths(6, 9) is None


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 8), st.integers(0, 40), st.integers(0, 40))
def test_widths_are_those_of_a_list_that_forgets(widths: list[int], kept: int, start: int, end: int) -> None:
    log = StepLog(kept)
    for step, width in enumerate(widths):
        log.add(float(step), width)
    known = [widths[step] for step in range(max(0, len(widths) - kept, start), min(end, len(widths)))]
    assert log.widths(start, end) == ((min(known), max(known)) if known else None)


def test_only_changes_are_noted() -> None:
    log = ChangeLog()
    for at_s, why in enumerate(["seats", "seats", "blocks", "blocks", "seats"]):
        log.note(float(at_s), at_s, why)
    assert [(change.at_s, change.why) for change in log.between(0.0, 9.0)] == [
        (0.0, "seats"),
        (2.0, "blocks"),
        (4.0, "seats"),
    ]


def test_a_stretch_begins_with_what_was_in_force() -> None:
    log = ChangeLog()
    log.note(0.0, 0, "seats")
    log.note(2.0, 2, "blocks", "b")
    log.note(4.0, 4, "blocks", "c")
    assert [change.why for change in log.between(1.0, 2.0)] == ["seats"]
    assert [(change.at_s, change.by) for change in log.between(3.0, 5.0)] == [(2.0, "b"), (4.0, "c")]
    assert [change.by for change in log.between(2.0, 4.0)] == ["b"]


def test_what_is_too_long_ago_is_forgotten() -> None:
    log = ChangeLog(kept=2)
    for step in range(5):
        log.note(float(step), step, f"reason {step}")
    assert [change.at_s for change in log.between(0.0, 9.0)] == [3.0, 4.0]


def test_seconds_by_reason_are_as_far_as_changes_are_kept() -> None:
    log = ChangeLog(kept=3)
    for step, why in enumerate(["forgotten", "seats", "blocks", "seats"]):
        log.note(2.0 * step, step, why)
    assert log.spent_s(3.0, 7.0) == {"seats": 2.0, "blocks": 2.0}
    assert log.spent_s(0.0, 3.0) == {"seats": 1.0}
    assert log.spent_s(0.0, 2.0) == {}
    assert log.spent_s(7.0, 9.0) == {"seats": 2.0}
