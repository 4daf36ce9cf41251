"""Detects that nothing runs although work is ready, and recovers."""

from __future__ import annotations

import logging
from enum import IntEnum

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import RequestStatus

from headway.core.plan import StepOutcome
from headway.engine.step.admission import Admission
from headway.engine.step.ports import StepPort
from headway.predict.steps.learned import StepClock

logger = logging.getLogger(__name__)

STALLED_STEPS = 100
"""Empty steps with ready work before the first remedy, and between remedies."""

PATIENCE_S = 5.0
"""How long a KV copy may hold up all requests. A step short of blocks waits this long, then vLLM preempts as usual.
After this long without an answer the detector counts steps in which nothing ran.
"""

STALL_GRACE_S = 0.5
"""Empty steps count once nothing has run for this long. An idle engine spins, and a batch may wait for a member
that is not ready (a grammar takes milliseconds to compile).
"""

CALM_STEPS = 1_000
"""Steps without a stall after which an earlier stall no longer counts."""


class Remedy(IntEnum):
    """Actions against a stall, mildest first."""

    NONE = 0
    RECOMPUTE_PAUSED = 1
    FAIL_OVERSIZED = 2
    STOCK_ORDER = 3


class StallDetector:
    """Counts consecutive empty steps with ready work; after every STALLED_STEPS it asks for a stronger remedy.

    If a remedy only helps for a moment, the next one is stronger: stalls are forgotten after CALM_STEPS steps without
    one.
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
        return Remedy(min(self._remedies, Remedy.STOCK_ORDER))


class StallRecovery:
    """Follows a scheduler's steps. `remedy` says what its next plan has to do; the rest is done here."""

    def __init__(self, engine: StepPort, admission: Admission, step_clock: StepClock) -> None:
        self._engine = engine
        self._admission = admission
        self._step_clock = step_clock
        self._detector = StallDetector()
        self._idle_since_s: float | None = None
        self.remedy = self._told = Remedy.NONE

    def follow(self, outcome: StepOutcome) -> None:
        """Look at a step; act if many did nothing although work was ready."""
        if outcome.tokens:
            self._idle_since_s, self._told = None, Remedy.NONE
            self.remedy = self._detector.note(stalled=False)
            return
        self.remedy = Remedy.NONE
        if not self._engine.ledger.live:
            self._idle_since_s = None  # the next job gets its own time
            return
        if self._idle_since_s is None:
            self._idle_since_s = outcome.now_s
        if self._waited_long(outcome.now_s, self._idle_since_s) and self._stalled():
            self.remedy = self._detector.note(stalled=True)
        if self.remedy is not Remedy.NONE:
            self._take(self.remedy)

    def _take(self, remedy: Remedy) -> None:
        engine = self._engine
        engine.counters.watchdog_faults += 1
        if remedy is not self._told:  # a remedy that does not help is taken again and again
            self._told = remedy
            logger.error(
                "work is ready and nothing ran in the last steps; remedy: %s (%s)",
                remedy.name,
                self._standing(),
            )
        if remedy is not Remedy.RECOMPUTE_PAUSED and self._fail_oversized():
            self._detector = (
                StallDetector()
            )  # these requests blocked the queue, and no policy could have helped
        elif remedy is Remedy.STOCK_ORDER and not engine.guard.fell_back:
            engine.guard.fall_back("work is ready and nothing ran")

    def _waited_long(self, now_s: float, since_s: float) -> bool:
        """Whether nothing has run for long and no wait explains it: ready work may wait for what copies hold."""
        swaps = self._engine.swaps
        if swaps is None or not swaps.copies.busy:
            return now_s - since_s >= STALL_GRACE_S
        return bool(now_s - max(since_s, swaps.answered_s) > PATIENCE_S)

    def _stalled(self) -> bool:
        engine = self._engine
        if engine._pause_state != PauseState.UNPAUSED or self._step_clock.in_flight:
            return False
        admission, transfers = self._admission, engine.transfers
        if transfers is None or not transfers.holds_blocks:
            ready = (admission.not_ready(request) is None for request in engine.waiting)
            return bool(engine.running) or any(ready)
        # Jobs without blocks wait for the connector under any policy.
        return any(not admission.lacks_blocks(request, 1) for request in engine.running) or any(
            admission.not_ready(request) is None and admission.misfit(request) is None
            for request in (*engine.waiting, *engine.kv_holding_waiting)
        )

    def _standing(self) -> str:
        """Describe the stalled work for the log."""
        engine, swaps = self._engine, self._engine.swaps
        free = engine.kv_cache_manager.block_pool.get_num_free_blocks()
        found = f"{len(engine.running)} running, {len(engine.waiting)} waiting, {free} KV blocks free"
        if swaps is None:
            return found
        copies = "under way" if swaps.copies.busy else "none under way"
        coming_back = len(swaps.copies.restoring)
        return f"{found}, {swaps.device.coming_free} held by copies, {coming_back} on their way back, copies: {copies}"

    def _fail_oversized(self) -> bool:
        """End requests that do not fit even an empty cache, since they block the queue. Return whether there were
        any.
        """
        total_blocks = self._engine.kv_cache_manager.block_pool.num_gpu_blocks - 1
        any_failed = False
        for request in list(self._engine.waiting):
            needed = self._engine.view.blocks(request.num_tokens)
            if needed > total_blocks:
                why = f"headway: needs {needed} KV blocks, the engine has {total_blocks}"
                self._engine.dismiss(request.request_id, RequestStatus.FINISHED_ERROR, why)
                any_failed = True
        return any_failed
