"""Evictions: whose KV leaves the device, and how. One eviction a file."""

from __future__ import annotations

from typing import Protocol

from headway.core.plan import StepOutcome, StepPlan
from headway.core.view import StepView
from headway.policies.eviction.cheapest import Cheapest
from headway.policies.eviction.proactive import Proactive
from headway.policies.eviction.recompute import Recompute
from headway.policies.eviction.swap import Swap
from headway.policies.order import Order


class Eviction(Protocol):
    """Who is preempted before the step is filled; shortage while filling takes the last resident."""

    @property
    def serial(self) -> bool:
        """Whether a step waits for the copies decided with it."""
        ...

    def evict(self, view: StepView, plan: StepPlan, order: Order) -> StepPlan:
        """The plan with those whose KV leaves now in `preempt` and no longer in `run`.

        With `admit` emptied if they leave because blocks are short (invariant 4). The plan as it is if nobody
        leaves.
        """
        ...

    def next_change_s(self, view: StepView) -> float:
        """Until when it takes nobody while the plan stays as it is, as `Order.next_change_s`."""
        ...

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a step that was filled."""
        ...


EVICTIONS: dict[str, type[Eviction]] = {
    "recompute": Recompute,
    "swap": Swap,
    "cheapest": Cheapest,
    "proactive": Proactive,
}
