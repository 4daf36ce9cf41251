"""Drop the KV of the last in line when blocks run out, and compute it again."""

from __future__ import annotations

from math import inf

from headway.core.plan import StepOutcome, StepPlan
from headway.core.view import StepView
from headway.policies.order import Order


class Recompute:
    """Nobody ahead of need; on shortage the fill rule drops the last resident (stock vLLM V1)."""

    serial = False

    def evict(self, view: StepView, plan: StepPlan, order: Order) -> StepPlan:
        """The plan as it is."""
        return plan

    def next_change_s(self, view: StepView) -> float:
        """Never."""
        return inf

    def ranks_nobody(self, view: StepView) -> bool:
        """Always, while there are blocks."""
        return True

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn."""
