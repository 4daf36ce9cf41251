"""Swap the last in line to the host when blocks run out."""

from __future__ import annotations

from math import inf

from headway.core.job import Job
from headway.core.plan import Fate, StepOutcome, StepPlan
from headway.core.view import StepView
from headway.policies.eviction.making_room import make_room
from headway.policies.eviction.residency import Residency
from headway.policies.order import Order


class Swap:
    """Every victim is swapped; with `fallback`, one the host has no room for is recomputed.

    Without it, such a job keeps its KV and pauses until others end; only when nobody else could run either is
    it recomputed after all. `serial` has the step wait for the copies decided with it, as vLLM 0.2.5 does; else
    they go beside the steps. `min_residency`: steps for which a job that was just admitted is spared. Source:
    the vLLM_S of AdaptiveLLM (section 1.7).
    """

    uses_host = True

    def __init__(self, *, serial: bool = False, fallback: bool = True, min_residency: int = 0) -> None:
        self.serial = serial
        self.fallback = fallback
        self.min_residency = min_residency
        self._residency = Residency(min_residency)

    def evict(self, view: StepView, plan: StepPlan, order: Order) -> StepPlan:
        """The lowest ranked leave, as many as the step lacks blocks."""
        return make_room(view, plan, order, self._fate, serial=self.serial, spared=self._residency.recent())

    def _fate(self, job: Job, has_room: bool) -> Fate | None:
        if has_room:
            return Fate.SWAP
        return Fate.RECOMPUTE if self.fallback else None

    def next_change_s(self, view: StepView) -> float:
        """Never: it acts when blocks run out, and what is stepped over ends before that."""
        return inf

    def ranks_nobody(self, view: StepView) -> bool:
        """Always, while there are blocks."""
        return True

    def observe(self, outcome: StepOutcome) -> None:
        """Note who came."""
        self._residency.observe(outcome)
