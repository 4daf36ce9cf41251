"""Swap or recompute the last in line, whichever is predicted to cost less."""

from __future__ import annotations

from math import inf

from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job
from headway.core.plan import Fate, StepOutcome, StepPlan
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.eviction.fate import cheaper_fate
from headway.policies.eviction.making_room import make_room
from headway.policies.eviction.residency import Residency
from headway.policies.eviction.urgent_room import DEFAULT_MAX_RECOMPUTED, make_urgent_room
from headway.policies.order import Order


class Cheapest:
    """A victim is swapped if that is predicted to cost others less time than to drop its KV.

    Dropped KV is computed again, but for what a connector's store holds of it, which is loaded.

    Ties, and a host without room, mean to recompute. A victim is costed alone, as one prompt (gap A9). What the
    host has a copy of already need not be copied out. `serial` has the step wait for the copies decided with
    it, as in the paper, so that both ways count; else they go beside the steps, and the longer way counts.
    `min_residency`: steps for which a job that was just admitted is spared. With `always_recompute` both costs
    are predicted and the answer is left unused: what predicting costs by itself. With `urgent` residents that
    can spare their place also leave for a newcomer that is overdue or can be in time, where the order knows
    (`make_urgent_room`, which says what `max_recomputed` bounds).
    Source: AdaptiveLLM Algorithm 1 (section 1.3).
    """

    uses_host = True

    def __init__(
        self,
        cost: CostModel | None = None,
        *,
        serial: bool = False,
        min_residency: int = 0,
        always_recompute: bool = False,
        urgent: bool = False,
        max_recomputed: float = DEFAULT_MAX_RECOMPUTED,
    ) -> None:
        if not max_recomputed >= 0:
            raise ConfigError(f"max_recomputed is {max_recomputed}; accepted: 0 or more times a job's tokens")
        self.serial = serial
        self.min_residency = min_residency
        self.always_recompute = always_recompute
        self.urgent = urgent
        self.max_recomputed = max_recomputed
        self._cost: CostModel = cost or UnknownCost()
        self._residency = Residency(min_residency)

    def evict(self, view: StepView, plan: StepPlan, order: Order) -> StepPlan:
        """The lowest ranked leave, as many as the step lacks blocks, each the cheaper way."""

        def fate(job: Job, has_room: bool) -> Fate:
            cheaper = cheaper_fate(self._cost, view, job, has_room, serial=self.serial)
            return Fate.RECOMPUTE if self.always_recompute else cheaper

        recent = self._residency.recent()
        plan = make_room(view, plan, order, fate, serial=self.serial, spared=recent)
        if plan.preempt or not self.urgent:
            return plan
        return make_urgent_room(view, plan, order, fate, spared=recent, max_recomputed=self.max_recomputed)

    def next_change_s(self, view: StepView) -> float:
        """Never: it acts when blocks run out, and what is stepped over ends before that."""
        return inf

    def ranks_nobody(self, view: StepView) -> bool:
        """While there are blocks, and nobody waits for whom room would be made."""
        return not view.waiting

    def observe(self, outcome: StepOutcome) -> None:
        """Note who came."""
        self._residency.observe(outcome)
