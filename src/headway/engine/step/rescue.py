"""What is done about work that could run while nothing does: the watchdog's remedies."""

from __future__ import annotations

import logging
from typing import Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import RequestStatus

from headway.core.plan import StepOutcome
from headway.engine.step.watchdog import PATIENCE_S, STALL_GRACE_S, Remedy, Watchdog

logger = logging.getLogger(__name__)


class Rescue:
    """Follows a scheduler's steps; what its next plan has to do is in `remedy`, the rest is done here."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._watchdog = Watchdog()
        self._idle_since_s: float | None = None
        self.remedy = self._told = Remedy.NONE

    def follow(self, outcome: StepOutcome) -> None:
        """Look at a step; take a remedy where many did nothing although work was ready."""
        if outcome.tokens:
            self._idle_since_s, self._told = None, Remedy.NONE
            self.remedy = self._watchdog.note(stalled=False)
            return
        self.remedy = Remedy.NONE
        if not self._scheduler.ledger.live:
            self._idle_since_s = None  # who comes next has its own time
            return
        if self._idle_since_s is None:
            self._idle_since_s = outcome.now_s
        if self._waited_long(outcome.now_s, self._idle_since_s) and self._stalled():
            self.remedy = self._watchdog.note(stalled=True)
        if self.remedy is not Remedy.NONE:
            self._take(self.remedy)

    def _take(self, remedy: Remedy) -> None:
        scheduler = self._scheduler
        scheduler.counters.watchdog_faults += 1
        if remedy is not self._told:  # one that does not help is taken again and again
            self._told = remedy
            logger.error(
                "work is ready and nothing ran in the last steps; remedy: %s (%s)",
                remedy.name,
                self._standing(),
            )
        if remedy is Remedy.STOCK_ORDER:
            scheduler.guard.fall_back("work is ready and nothing ran")
        elif remedy is Remedy.FAIL_OVERSIZED:
            self._fail_oversized()

    def _waited_long(self, now_s: float, since_s: float) -> bool:
        """Whether nothing has run for long; all that is ready may wait for what copies under way hold."""
        swaps = self._scheduler.swaps
        if swaps is None or not swaps.copies.busy:
            return now_s - since_s >= STALL_GRACE_S
        return bool(now_s - max(since_s, swaps.answered_s) > PATIENCE_S)

    def _stalled(self) -> bool:
        scheduler = self._scheduler
        if scheduler._pause_state != PauseState.UNPAUSED or scheduler.step_clock.in_flight:
            return False
        admission, transfers = scheduler.admission, scheduler.transfers
        if transfers is None or not transfers.holds_blocks:
            ready = (admission.not_ready(request) is None for request in scheduler.waiting)
            return bool(scheduler.running) or any(ready)
        # What lacks blocks waits for the connector, whatever the policy does.
        return any(not admission.lacks_blocks(request, 1) for request in scheduler.running) or any(
            admission.not_ready(request) is None and admission.misfit(request) is None
            for request in (*scheduler.waiting, *scheduler.kv_holding_waiting)
        )

    def _standing(self) -> str:
        """Who and what stands still, for the log."""
        scheduler, swaps = self._scheduler, self._scheduler.swaps
        free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        found = f"{len(scheduler.running)} running, {len(scheduler.waiting)} waiting, {free} KV blocks free"
        if swaps is None:
            return found
        copies = "under way" if swaps.copies.busy else "none under way"
        coming_back = len(swaps.copies.restoring)
        return f"{found}, {swaps.device.coming_free} held by copies, {coming_back} on their way back, copies: {copies}"

    def _fail_oversized(self) -> None:
        """End a request that does not fit even an empty cache: it would block its queue for ever."""
        total_blocks = self._scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1
        for request in list(self._scheduler.waiting):
            needed = self._scheduler.view.blocks(request.num_tokens)
            if needed > total_blocks:
                why = f"headway: needs {needed} KV blocks, the engine has {total_blocks}"
                self._scheduler.dismiss(request.request_id, RequestStatus.FINISHED_ERROR, why)
