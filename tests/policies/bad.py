"""Policies that are wrong on purpose, to prove that the checks of `contract` notice."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from headway.core.job import Job
from headway.core.plan import Departure, StepOutcome, StepPlan
from headway.core.view import StepView
from headway.policies.batching.decode_first import DecodeFirst
from headway.policies.order import Order
from headway.policies.order.arrival import Arrival
from headway.policies.order.keyed import KeyedOrder
from headway.policies.order.sorted_index import Key


class NamesTwice:
    """Admits its first candidate twice."""

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """A plan with a job named twice."""
        plan = DecodeFirst().plan(view, order, leaving)
        plan.admit = [*plan.admit[:1], *plan.admit]
        return plan

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn."""


class PausesAll:
    """Starts jobs and never lets them run again."""

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """A plan in which nobody runs."""
        plan = DecodeFirst().plan(view, order, leaving)
        plan.run = ()
        return plan

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn."""


class WaitsForFirst:
    """Starts nobody while the first in the queue is not ready."""

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """A plan that may leave an empty engine empty."""
        plan = DecodeFirst().plan(view, order, leaving)
        if plan.admit and not view.admissible(plan.admit[0]):
            plan.admit = ()
        return plan

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn."""


class Turns:
    """Serves residents in another order each time it is asked."""

    def __init__(self) -> None:
        self._asked = 0

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """A plan that changes the policy."""
        self._asked += 1
        plan = DecodeFirst().plan(view, order, leaving)
        plan.run = plan.run[:: -1 if self._asked % 2 else 1]
        return plan

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn."""


class ShortestOutput(KeyedOrder):
    """Ranks by the true output length, which it was told behind everybody's back."""

    def __init__(self, true_output: Mapping[str, int]) -> None:
        super().__init__()
        self._true_output = true_output

    def key(self, job: Job) -> Key:
        """(true output tokens, arrival, id)."""
        return (self._true_output[job.id], job.arrival_s, job.id)


class IgnoresTies(KeyedOrder):
    """Breaks ties by the order in which jobs were added."""

    def __init__(self) -> None:
        super().__init__()
        self._added = 0

    def key(self, job: Job) -> Key:
        """(arrival, serial)."""
        self._added += 1
        return (job.arrival_s, self._added)


class NeverForgets(Arrival):
    """Keeps every job it has ever seen."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: list[Job] = []

    def add(self, job: Job) -> None:
        """Queue a job, and keep it."""
        super().add(job)
        self._seen.append(job)


@dataclass(slots=True)
class ForgetsToLeave:
    """Lets a job leave although it has started, by never following who was admitted."""

    _watched: list[Job] = field(default_factory=list)

    def add(self, job: Job) -> None:
        """Watch a job."""
        self._watched.append(job)

    def remove(self, job: Job) -> None:
        """Go on watching it."""

    def leave(self, view: StepView) -> Mapping[Job, Departure]:
        """Everybody ever seen, from the fifth step on."""
        late: Sequence[Job] = self._watched if view.now_s >= 4 else ()
        return dict.fromkeys(late, Departure.SHED)
