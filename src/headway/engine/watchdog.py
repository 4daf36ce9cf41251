"""Sees work that could run while nothing does."""

from __future__ import annotations

from enum import IntEnum

STALLED_STEPS = 100
"""Empty steps with ready work before the first remedy, and between remedies."""


class Remedy(IntEnum):
    """What to do about a stall, mildest first."""

    NONE = 0
    RECOMPUTE_PAUSED = 1
    STOCK_ORDER = 2
    FAIL_OVERSIZED = 3


class Watchdog:
    """Counts empty steps in a row during which work was ready; every STALLED_STEPS of them ask for more."""

    def __init__(self) -> None:
        self._stalled_steps = 0

    def note(self, *, stalled: bool) -> Remedy:
        """The remedy due after this step; any step that is not stalled starts again from the mildest."""
        if not stalled:
            self._stalled_steps = 0
            return Remedy.NONE
        self._stalled_steps += 1
        if self._stalled_steps % STALLED_STEPS:
            return Remedy.NONE
        return Remedy(min(self._stalled_steps // STALLED_STEPS, Remedy.FAIL_OVERSIZED))
