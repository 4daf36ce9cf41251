"""Evictions that act when blocks run out: drop the KV, or swap it."""

from __future__ import annotations

from math import inf

from headway.core.job import Job
from headway.core.plan import Fate, StepOutcome, StepPlan
from headway.core.view import StepView
from headway.policies.demand import within_host
from headway.policies.eviction.making_room import OnShortage, Residency, make_room
from headway.policies.protocols import LearnsNothing, Order


class Recompute(OnShortage, LearnsNothing):
    """No job leaves ahead of need; on shortage the fill rule drops the last resident (stock vLLM V1).

    With `free_block_each` the lowest-ranked are dropped before the step, as in vLLM 0.2.5.
    """

    serial = False

    def __init__(self, *, free_block_each: bool = False) -> None:
        self.free_block_each = free_block_each

    def evict(self, view: StepView, plan: StepPlan, order: Order) -> StepPlan:
        """The plan as it is, or without the jobs that leave no block for the others."""
        if not self.free_block_each:
            return plan
        return make_room(view, plan, order, lambda *_: Fate.RECOMPUTE, serial=False, free_block_each=True)

    def ranks_nobody(self, view: StepView) -> bool:
        """True while there are blocks."""
        return True


class Swap(OnShortage):
    """Every victim is swapped; with `fallback`, one for which the host has no room is recomputed.

    Without `fallback` such a job keeps its KV and pauses until others end; it is recomputed only if no other job could
    run. With `serial` the step waits for the copies decided with it, as in vLLM 0.2.5; otherwise they run beside the
    steps. With `host_room` jobs also leave for what the residents hold beyond the host's blocks (`demand.within_host`),
    except for a lone job. `min_residency`: steps for which a newly admitted job is spared. Source: the vLLM_S of
    AdaptiveLLM (section 1.7).
    """

    uses_host = True

    def __init__(
        self,
        *,
        serial: bool = False,
        fallback: bool = True,
        min_residency: int = 0,
        free_block_each: bool = False,
        host_room: bool = False,
    ) -> None:
        self.serial = serial
        self.host_room = host_room
        self.free_block_each = free_block_each
        self.fallback = fallback
        self.min_residency = min_residency
        self._residency = Residency(min_residency)

    def evict(self, view: StepView, plan: StepPlan, order: Order) -> StepPlan:
        """The lowest-ranked jobs leave, as many as the step lacks blocks."""
        return make_room(
            within_host(view) if self.host_room else view,
            plan,
            order,
            self._fate,
            serial=self.serial,
            spared=self._residency.recent(),
            free_block_each=self.free_block_each,
        )

    def _fate(self, job: Job, has_room: bool) -> Fate | None:
        return Fate.SWAP if has_room else Fate.RECOMPUTE if self.fallback else None

    def ranks_nobody(self, view: StepView) -> bool:
        """True while there are blocks."""
        return True

    def next_change_s(self, view: StepView) -> float:
        """Never; unknown if jobs may leave while the device has blocks."""
        return -inf if self.host_room else super().next_change_s(view)

    def observe(self, outcome: StepOutcome) -> None:
        """Note which jobs were admitted."""
        self._residency.observe(outcome)
