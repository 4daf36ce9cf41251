"""Iteration-level batches with reserved memory."""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from headway.core.job import Job
from headway.core.plan import StepOutcome, StepPlan
from headway.core.view import StepView
from headway.policies.batching.candidates import candidates
from headway.policies.batching.reservation import reservable
from headway.policies.order import Order


class IterationLevel:
    """Jobs join and leave at every step, prefill and decode share it, prompts are whole, none is evicted.

    A job is admitted only if blocks for its prompt and its output limit can be reserved, so it runs to
    completion. A prompt longer than a step's budget runs alone, in chunks; the batch waits for it. Source:
    Orca (Yu et al., OSDI 2022), as FastServe section 4.7 describes it.
    """

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """Every resident, then the waiting jobs that can be reserved for."""
        admit = reservable(view, candidates(view, order, leaving))
        prefills = [job for job in view.residents if job.prefilling]
        too_long = bool(admit) and not prefills and admit[0].num_tokens > view.max_tokens
        alone = too_long and view.admissible(admit[0])
        return StepPlan(
            run=() if alone else prefills or order.rank(view.residents, view.now_s),
            admit=() if prefills else admit[:1] if alone else admit,
            token_budget=view.max_tokens,
            whole_prompts=True,
        )

    def next_change_s(self, view: StepView) -> float:
        """Never: memory that only fills up starts nobody who could not start before."""
        return inf

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn."""
