"""A policy: one order, one batching, one eviction and a list of leaving rules."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan

from headway.core.job import Job, JobState
from headway.core.kept_programs import KeepRule
from headway.core.plan import Departure, StepOutcome, StepPlan
from headway.core.view import StepView
from headway.errors import PlanError
from headway.policies.protocols import (
    Batching,
    Changing,
    Eviction,
    Leaving,
    Order,
    learns,
    looks_again,
    may_rank_nobody,
    predicts,
)

_QUEUED = (JobState.WAITING, JobState.SWAPPED)
"""States of the jobs that the order and the leaving rules hold."""


def _change_s(part: Changing, view: StepView) -> float:
    """A part's promise. Raises PlanError for NaN, after which a plan would be kept for ever."""
    change_s = part.next_change_s(view)
    if isinstance(change_s, bool) or not isinstance(change_s, (float, int)) or isnan(change_s):
        raise PlanError(
            f"next_change_s of {type(part).__name__} is {change_s!r}; accepted: seconds, inf or -inf, as a float"
        )
    return change_s


@dataclass(slots=True)
class Policy:
    """Decides one engine's steps. `add`, `end`, `touch` and `observe` change the parts.

    `plan` changes no decision, but caches estimates: called again it gives the same plan. The same sequence of calls
    always gives the same plans: a policy reads no clock, no random source, and no true length of an output (invariant
    7).
    """

    name: str
    order: Order
    batching: Batching
    eviction: Eviction
    leaving: tuple[Leaving, ...] = ()
    uses_costs: bool = True
    """Whether a part uses the cost model; if not, the simulator teaches that model nothing."""
    retention: KeepRule | None = None
    """Keeps the KV of agent programs between their turns; None: nothing is kept."""

    @property
    def serial_copies(self) -> bool:
        """Whether a step waits for the KV copies decided with it, as its eviction wants."""
        return self.eviction.serial

    @property
    def pads_prompts(self) -> bool:
        """Whether its batches are those of an engine that pads prompts. The simulator then charges the padding too."""
        return getattr(self.batching, "pads_prompts", False)

    @property
    def uses_host(self) -> bool:
        """Whether the policy can use host memory. Parts say so themselves; those of other packages may say nothing."""
        return getattr(self.eviction, "uses_host", False)

    @property
    def uses_predictions(self) -> bool:
        """Whether predicted lengths change its decisions."""
        return predicts(self.order) or getattr(self.batching, "uses_predictions", False)

    @property
    def needs_targets(self) -> bool:
        """Whether its order is first come, first served for requests without targets."""
        return getattr(self.order, "needs_targets", False)

    @property
    def uses_prefixes(self) -> bool:
        """Whether its decisions depend on what the prefix cache holds of waiting prompts."""
        return getattr(self.order, "uses_prefixes", False)

    def add(self, job: Job) -> None:
        """A job starts to wait; a swapped job waits like any other, to be admitted again."""
        self.order.add(job)
        for rule in self.leaving:
            rule.add(job)

    def end(self, job: Job, *, finished: bool) -> None:
        """A job is gone; if it still waited, it no longer does.

        `finished`: its answer ended by itself or at its limit, so that its length can be learned from.
        """
        for part in (self.order, self.batching) if finished else ():
            if learns(part):
                part.finished(job)
        if job.state in _QUEUED:
            self._stop_waiting(job)
        self.order.end(job)

    def _stop_waiting(self, job: Job) -> None:
        self.order.remove(job)
        for rule in self.leaving:
            rule.remove(job)

    def touch(self, job: Job) -> None:
        """Something changed on which a job's rank may depend: its first token is out, or it grew while waiting."""
        self.order.touch(job)
        if job.state in _QUEUED:
            for rule in self.leaving:
                rule.remove(job)
                rule.add(job)

    def plan(self, view: StepView) -> StepPlan:
        """Decide this step: which jobs leave, run and start, and whose KV goes."""
        leave: dict[Job, Departure] = {}
        for rule in self.leaving:
            leave = {**rule.leave(view), **leave}  # the first rule that names a job decides
        plan = self.batching.plan(view, self.order, leave)
        if len(plan.run) > view.max_run:
            plan.run = plan.run[: view.max_run]
        plan.leave = leave
        self._look_again(view, plan)
        return self.eviction.evict(view, plan, self.order)

    def _look_again(self, view: StepView, plan: StepPlan) -> None:
        """Let jobs leave that the step does not serve and a rule gives up; the first rule that names a job decides."""
        for rule in filter(looks_again, self.leaving):
            given_up = rule.leave_unserved(view, plan)
            if given_up:
                plan.leave = {**given_up, **plan.leave}
                plan.admit = [job for job in plan.admit if job not in given_up]

    def next_change_s(self, view: StepView) -> float:
        """How long the plan for this view stays valid, if no job comes or ends and residents only decode.

        inf for ever; a moment before now if a part cannot tell. The simulator skips such stretches, in which orders see
        jobs as they were at the beginning.
        """
        return min(self.same_plan_until_s(view), _change_s(self.order, view))

    def same_plan_until_s(self, view: StepView) -> float:
        """As `next_change_s`, for an order that follows every step: ranks may change if no part uses them."""
        changing: list[Changing] = [*self.leaving, self.batching, self.eviction]
        ranking: tuple[object, ...] = (self.batching, self.eviction)
        if not all(may_rank_nobody(part) and part.ranks_nobody(view) for part in ranking):
            changing.append(self.order)
        return min(_change_s(part, view) for part in changing)

    def observe(self, outcome: StepOutcome) -> None:
        """Follow a filled step: which jobs were admitted, which lost their KV; then let the parts learn."""
        for job in outcome.admitted:
            self._stop_waiting(job)
        for job in outcome.preempted:
            self.add(job)
        self.order.observe(outcome)
        self.eviction.observe(outcome)
        self.batching.observe(outcome)
