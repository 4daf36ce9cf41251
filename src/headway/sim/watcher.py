"""Seeing what each engine decides, at the moment it decides, without changing any of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headway.core.cost import CostModel
from headway.core.job import Job
from headway.core.plan import StepOutcome, StepPlan
from headway.core.record import Record
from headway.core.view import StepView
from headway.policies.policy import Policy
from headway.policies.protocols import Batching, Learning, Order


@dataclass(frozen=True, slots=True)
class Sight:
    """One step at the moment it was scheduled; jobs are live, and stand as the step left them.

    `view` is what it was planned on, `residents` those of before the step; `order` and the view's waiting are of after
    it. `cost` is what the policy knows of cost. Read only, and only while the watcher is being told.
    """

    instance: str
    view: StepView
    residents: Sequence[Job]
    order: Order
    cost: CostModel
    outcome: StepOutcome


class Watcher(Protocol):
    """Follows a run; what it does must not change any job or policy."""

    def saw(self, sight: Sight) -> None:
        """A step was scheduled, or nothing could be."""
        ...

    def stepped(self, instance: str, outcome: StepOutcome, started_s: float, finished_s: float) -> None:
        """The output of a step is about to be processed; it was scheduled at `started_s`."""
        ...

    def ended(self, record: Record) -> None:
        """A request has ended."""
        ...


def watched(
    build: Callable[[CostModel], Policy], watcher: Watcher, names: Iterable[str]
) -> Callable[[CostModel], Policy]:
    """A factory of the same policies that tells `watcher` of every step.

    `names` are those of the instances, in the order in which their policies are built.
    """
    left = iter(names)

    def build_watched(cost: CostModel) -> Policy:
        policy = build(cost)
        policy.batching = _WatchedBatching(policy.batching, next(left), cost, watcher.saw)
        policy.uses_costs = True
        return policy

    return build_watched


class _WatchedBatching:
    """A batching that plans as the one inside; a policy tells its batching of each step last of all."""

    def __init__(self, inner: Batching, instance: str, cost: CostModel, saw: Callable[[Sight], None]) -> None:
        self._inner = inner
        self._instance = instance
        self._cost = cost
        self._saw = saw
        self._seen: tuple[StepView, Sequence[Job], Order] | None = None

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """As the batching inside."""
        self._seen = (view, view.residents, order)
        return self._inner.plan(view, order, leaving)

    def next_change_s(self, view: StepView) -> float:
        """As the batching inside."""
        return self._inner.next_change_s(view)

    def finished(self, job: Job) -> None:
        """Learn as the batching inside, if it does."""
        if isinstance(self._inner, Learning):
            self._inner.finished(job)

    def observe(self, outcome: StepOutcome) -> None:
        """Learn as the batching inside, then tell."""
        self._inner.observe(outcome)
        assert self._seen is not None, "a step was filled that nobody planned"
        view, residents, order = self._seen
        self._saw(Sight(self._instance, view, residents, order, self._cost, outcome))
