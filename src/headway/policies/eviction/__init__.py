"""Evictions: whose KV leaves the device, and how. One eviction a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headway.core.job import Job
from headway.core.plan import Fate, StepPlan
from headway.core.view import StepView
from headway.policies.eviction.recompute import Recompute
from headway.policies.order import Order


class Eviction(Protocol):
    """Who is preempted before the step is filled; shortage while filling takes the last resident."""

    def preempt(self, view: StepView, plan: StepPlan, order: Order) -> Mapping[Job, Fate]:
        """Residents, not named in `plan.run`, whose KV leaves now."""
        ...

    def next_change_s(self, view: StepView) -> float:
        """Until when it takes nobody while the plan stays as it is, as `Order.next_change_s`."""
        ...


EVICTIONS: dict[str, type[Eviction]] = {"recompute": Recompute}
