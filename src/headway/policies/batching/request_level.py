"""Request-level batches: the next batch starts when every member of the last has finished."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf

from headway.core.job import Job, JobState
from headway.core.plan import StepOutcome, StepPlan
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.batching.candidates import candidates
from headway.policies.batching.reservation import reservable
from headway.policies.order import Order


@dataclass(slots=True)
class RequestLevel:
    """Take up to `batch_size` jobs in rank order and run exactly these until all have ended.

    Members whose prompts did not fit the first step start in the following ones; a member that was
    preempted re-enters as a member. With `reserve` the batch is cut to what fits with every output at its
    limit, so nobody is preempted. Source: FasterTransformer, as FastServe section 4.7 describes it;
    Magnus section 2.1.
    """

    batch_size: int | None = None
    reserve: bool = True
    _members: list[Job] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.batch_size is not None and self.batch_size < 1:
            raise ConfigError(f"batch_size is {self.batch_size}; accepted: 1 or more jobs")

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """The batch's own jobs, or a new batch when it is over."""
        members = self._live() or self._next_batch(view, order, leaving)
        return StepPlan(
            run=order.rank(view.residents, view.now_s),
            admit=[job for job in members if job.state is not JobState.RESIDENT and job not in leaving],
            token_budget=view.max_tokens,
        )

    def _live(self) -> list[Job]:
        return [job for job in self._members if job.state is not JobState.ENDED]

    def _next_batch(self, view: StepView, order: Order, leaving: Collection[Job]) -> list[Job]:
        size = view.seats if self.batch_size is None else min(self.batch_size, view.seats)
        first = candidates(view, order, leaving, seats=size)[:size]
        return reservable(view, first) if self.reserve else first

    def next_change_s(self, view: StepView) -> float:
        """Never: memory that only fills up starts nobody who could not start before."""
        return inf

    def observe(self, outcome: StepOutcome) -> None:
        """Make the batch just started the batch to finish."""
        if outcome.admitted and not self._live():
            self._members = list(outcome.plan.admit)
