"""The most deserving jobs run, whoever they are."""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from headway.core.job import Job
from headway.core.plan import StepOutcome, StepPlan
from headway.core.view import StepView
from headway.policies.batching.candidates import SCAN_AHEAD
from headway.policies.batching.decode_first import decodes_first
from headway.policies.order import Order


class TopJobs:
    """The first `max_run` jobs of the ranking run, resident or waiting; the other residents pause.

    Preemption at every token: a newcomer that ranks higher takes the place of a running job in the next
    step, and the job that made way keeps its KV (FastServe section 4.1). Only who would be admitted takes
    a place, so nobody pauses for a job that has no slot or blocks, or is not ready. O((residents + seats)
    log) a step, and a memory check for each newcomer of the top.
    """

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """The top of residents and startable newcomers together; further newcomers for seats left over."""
        waiting = [
            job
            for job in order.top(view.max_run + SCAN_AHEAD + len(leaving), view.now_s)
            if job not in leaving
        ]
        startable = [job for job in waiting[: view.max_run] if view.admissible(job)]
        ranked = order.rank([*view.residents, *startable], view.now_s)[: view.max_run]
        newcomers = set(startable)
        run = [job for job in ranked if job not in newcomers]
        starting = [job for job in ranked if job in newcomers]
        others = [job for job in waiting if job not in newcomers]
        return StepPlan(
            run=decodes_first(run),
            admit=starting + others if len(run) < view.max_run else (),
            token_budget=view.max_tokens,
        )

    def next_change_s(self, view: StepView) -> float:
        """Never: memory that only fills up starts nobody who could not start before."""
        return inf

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn."""
