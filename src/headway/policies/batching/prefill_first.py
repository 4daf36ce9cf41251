"""New prompts first and whole, decodes only when there is none to start."""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from headway.core.job import Job
from headway.core.plan import StepOutcome, StepPlan
from headway.core.view import StepView
from headway.policies.batching.candidates import candidates
from headway.policies.order import Order


class PrefillFirst:
    """A step either prefills or decodes, never both; prompts are computed whole (vLLM 0.2.5).

    While the first waiting job can start, decodes pause and their KV stays. With nobody to pause, jobs that
    are not ready are passed over. A prompt longer than a step's budget runs alone, in chunks.
    """

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """A prefill step if the first waiting job passes every check, else one decode of every resident."""
        prefills = [job for job in view.residents if job.prefilling]
        admit = [] if prefills else candidates(view, order, leaving)
        starts = bool(admit) and (not view.residents or view.admissible(admit[0]))
        return StepPlan(
            run=prefills if prefills or starts else order.rank(view.residents, view.now_s),
            admit=admit if starts else (),
            token_budget=view.max_tokens,
            whole_prompts=True,
        )

    def next_change_s(self, view: StepView) -> float:
        """Never: memory that only fills up starts nobody who could not start before."""
        return inf

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn."""
