"""Sees work that could run while nothing does."""

from __future__ import annotations

from enum import IntEnum

STALLED_STEPS = 100
"""Empty steps with ready work before the first remedy, and between remedies."""

PATIENCE_S = 5.0
"""How long a copy of KV may hold up all requests. A step short of blocks waits so long, then vLLM preempts as usual.
After so long without an answer the watchdog counts steps in which nothing ran."""

STALL_GRACE_S = 0.5
"""Empty steps are counted once nothing has run for so long: an engine with nothing to compute spins, and a
batch may have to wait for a member that is not ready (a grammar takes milliseconds to compile)."""

CALM_STEPS = 1_000
"""Steps without a stall after which an earlier one no longer counts."""


class Remedy(IntEnum):
    """What to do about a stall, mildest first."""

    NONE = 0
    RECOMPUTE_PAUSED = 1
    STOCK_ORDER = 2
    FAIL_OVERSIZED = 3


class Watchdog:
    """Counts empty steps in a row during which work was ready; every STALLED_STEPS of them ask for more.

    A remedy that only moves things for a moment is followed by a stronger one: the count of stalls is
    forgotten after CALM_STEPS steps without one.
    """

    def __init__(self) -> None:
        self._stalled_steps = 0
        self._calm_steps = 0
        self._remedies = 0

    def note(self, *, stalled: bool) -> Remedy:
        """The remedy due after this step."""
        if not stalled:
            self._stalled_steps = 0
            self._calm_steps += 1
            if self._calm_steps >= CALM_STEPS:
                self._remedies = 0
            return Remedy.NONE
        self._calm_steps = 0
        self._stalled_steps += 1
        if self._stalled_steps % STALLED_STEPS:
            return Remedy.NONE
        self._remedies += 1
        return Remedy(min(self._remedies, Remedy.FAIL_OVERSIZED))
