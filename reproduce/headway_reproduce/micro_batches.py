"""A batch for each pipeline stage, for policies that run whoever is resident."""

from __future__ import annotations

from dataclasses import fields

from headway.core.cost import CostModel
from headway.core.plan import StepPlan
from headway.core.view import StepView
from headway.policies.policy import Policy
from headway.sim.simulation import PolicyFactory


def micro_batched(build: PolicyFactory) -> PolicyFactory:
    """A factory of the same policies, in whose batches nobody counts that a step in flight computes.

    So that each step fills a batch of its own, as Orca keeps one a stage in flight (Yu et al., OSDI 2022, section
    4.2). Without it the batch width bounds all residents together, whom the stages then share.
    """

    def build_micro_batched(cost: CostModel) -> Policy:
        policy = build(cost)
        return _MicroBatched(**{part.name: getattr(policy, part.name) for part in fields(policy)})

    return build_micro_batched


class _MicroBatched(Policy):
    """Decides as the policy whose parts it has, with a batch's width beside those in flight."""

    def plan(self, view: StepView) -> StepPlan:
        """As the policy, without those who have nothing to compute before their step comes back."""
        in_flight = {job for job in view.residents if job.awaiting_output}
        view.max_run += len(in_flight)
        try:
            plan = super().plan(view)
        finally:
            view.max_run -= len(in_flight)
        if in_flight:
            plan.run = [job for job in plan.run if job not in in_flight]
        return plan
