"""Parts that are wrong on purpose, to prove that the checks of `contract` notice."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from math import inf

from headway.core.job import Job
from headway.core.plan import Departure, StepOutcome, StepPlan
from headway.core.view import StepView
from headway.policies.batching.decode_first import DecodeFirst
from headway.policies.order.arrival import Arrival
from headway.policies.order.keyed import KeyedOrder
from headway.policies.order.sorted_index import Key
from headway.policies.protocols import Order


@dataclass
class Spoiled:
    """Plans as stock vLLM does, then spoils the plan; `asked` counts the plans."""

    spoil: Callable[[StepPlan, StepView, int], None]
    asked: int = 0

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """A spoiled plan."""
        self.asked += 1
        plan = DecodeFirst().plan(view, order, leaving)
        self.spoil(plan, view, self.asked)
        return plan

    def next_change_s(self, view: StepView) -> float:
        """Unknown."""
        return -inf

    def observe(self, outcome: StepOutcome) -> None:
        """Do nothing."""


def names_twice(plan: StepPlan, view: StepView, asked: int) -> None:
    """Admit the first candidate twice."""
    plan.admit = [*plan.admit[:1], *plan.admit]


def halves_tokens(plan: StepPlan, view: StepView, asked: int) -> None:
    """Plan half of the budget, as a float."""
    plan.token_budget /= 2  # type: ignore[assignment]


def pauses_all(plan: StepPlan, view: StepView, asked: int) -> None:
    """Start jobs and never let them run again."""
    plan.run = ()


def waits_for_first(plan: StepPlan, view: StepView, asked: int) -> None:
    """Start nobody while the first in the queue is not ready."""
    if plan.admit and not view.admissible(plan.admit[0]):
        plan.admit = ()


def turns(plan: StepPlan, view: StepView, asked: int) -> None:
    """Serve residents in another order each time."""
    plan.run = plan.run[:: -1 if asked % 2 else 1]


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
class ShedsWhoStarted:
    """From the fifth step on sheds every job it ever saw, since it never follows which were admitted."""

    _watched: list[Job] = field(default_factory=list)

    def add(self, job: Job) -> None:
        """Watch a job."""
        self._watched.append(job)

    def remove(self, job: Job) -> None:
        """Go on watching it."""

    def leave(self, view: StepView) -> Mapping[Job, Departure]:
        """Everybody, late enough."""
        return dict.fromkeys(self._watched if view.now_s >= 4 else (), Departure.SHED)

    def next_change_s(self, view: StepView) -> float:
        """Unknown."""
        return -inf
