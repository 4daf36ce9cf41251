"""Drop the KV of the last in line when blocks run out, and compute it again."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from headway.core.job import Job
from headway.core.plan import Fate, StepPlan
from headway.core.view import StepView
from headway.policies.order import Order


class Recompute:
    """Nobody ahead of need; on shortage the fill rule drops the last resident (stock vLLM V1)."""

    def preempt(self, view: StepView, plan: StepPlan, order: Order) -> Mapping[Job, Fate]:
        """Nobody."""
        return {}

    def next_change_s(self, view: StepView) -> float:
        """Never."""
        return inf
