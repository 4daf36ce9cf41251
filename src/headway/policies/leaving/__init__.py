"""Leaving rules: who leaves the queue without running here. One rule a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeGuard, runtime_checkable

from headway.core.job import Job
from headway.core.plan import Departure, StepPlan
from headway.core.view import StepView
from headway.policies.leaving.at_risk import AtRisk
from headway.policies.leaving.expired import Expired
from headway.policies.leaving.out_of_memory import OutOfMemory
from headway.policies.leaving.queue_bound import QueueBound
from headway.policies.offers import offers


class Leaving(Protocol):
    """A rule run before everything else of a step; it looks only at waiting jobs it was told of."""

    def add(self, job: Job) -> None:
        """A job starts to wait."""
        ...

    def remove(self, job: Job) -> None:
        """A job no longer waits."""
        ...

    def leave(self, view: StepView) -> Mapping[Job, Departure]:
        """Who leaves now, and why."""
        ...

    def next_change_s(self, view: StepView) -> float:
        """Until when nobody leaves but by arrivals, as `Order.next_change_s`."""
        ...


@runtime_checkable
class SecondLook(Protocol):
    """A leaving rule that also looks once it is planned who runs and who starts."""

    def leave_unserved(self, view: StepView, plan: StepPlan) -> Mapping[Job, Departure]:
        """Who of those that this step does not serve leaves, and why."""
        ...


def looks_again(rule: Leaving) -> TypeGuard[SecondLook]:
    """Whether a rule is a `SecondLook`, at the price of a look-up."""
    return offers(rule, SecondLook)


LEAVINGS: dict[str, type[Leaving]] = {
    "at-risk": AtRisk,
    "expired": Expired,
    "out-of-memory": OutOfMemory,
    "queue-bound": QueueBound,
}
