from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.engine.step.stall_recovery import CALM_STEPS, STALLED_STEPS, Remedy, StallDetector
from tests.strategies import UNTIMED


def after(detector: StallDetector, steps: int, *, stalled: bool) -> list[Remedy]:
    """The remedies due after so many more steps, without the many times there is none."""
    due = [detector.note(stalled=stalled) for _ in range(steps)]
    return [remedy for remedy in due if remedy is not Remedy.NONE]


def test_a_remedy_is_due_exactly_at_the_limit() -> None:
    detector = StallDetector()
    due = [detector.note(stalled=True) for _ in range(STALLED_STEPS)]
    assert due == [Remedy.NONE] * (STALLED_STEPS - 1) + [Remedy.RECOMPUTE_PAUSED]


def test_a_stall_that_goes_on_gets_stronger_remedies_and_then_the_strongest_again() -> None:
    assert after(StallDetector(), 5 * STALLED_STEPS, stalled=True) == [
        Remedy.RECOMPUTE_PAUSED,
        Remedy.FAIL_OVERSIZED,
        Remedy.STOCK_ORDER,
        Remedy.STOCK_ORDER,
        Remedy.STOCK_ORDER,
    ]


def test_a_stall_soon_after_another_gets_a_stronger_remedy() -> None:
    detector = StallDetector()
    assert after(detector, STALLED_STEPS, stalled=True) == [Remedy.RECOMPUTE_PAUSED]
    assert after(detector, CALM_STEPS - 1, stalled=False) == []
    assert after(detector, STALLED_STEPS, stalled=True) == [Remedy.FAIL_OVERSIZED]


def test_after_calm_a_stall_begins_with_the_mildest_remedy() -> None:
    detector = StallDetector()
    assert after(detector, 2 * STALLED_STEPS, stalled=True)[-1] is Remedy.FAIL_OVERSIZED
    assert after(detector, CALM_STEPS, stalled=False) == []
    assert after(detector, STALLED_STEPS, stalled=True) == [Remedy.RECOMPUTE_PAUSED]


def test_calm_is_counted_in_a_row() -> None:
    detector = StallDetector()
    after(detector, STALLED_STEPS, stalled=True)
    after(detector, CALM_STEPS - 1, stalled=False)
    after(detector, 1, stalled=True)
    after(detector, CALM_STEPS - 1, stalled=False)
    assert after(detector, STALLED_STEPS, stalled=True) == [Remedy.FAIL_OVERSIZED]


@UNTIMED
@given(
    runs=st.lists(st.tuples(st.booleans(), st.sampled_from([1, 99, 100, 101, 250, 999, 1000])), max_size=12)
)
def test_there_is_one_remedy_for_every_full_count_of_stalled_steps(runs: list[tuple[bool, int]]) -> None:
    detector = StallDetector()
    in_a_row = 0
    for stalled, steps in runs:
        for _ in range(steps):
            in_a_row = in_a_row + 1 if stalled else 0
            due = detector.note(stalled=stalled)
            assert (due is not Remedy.NONE) == (stalled and in_a_row % STALLED_STEPS == 0)
