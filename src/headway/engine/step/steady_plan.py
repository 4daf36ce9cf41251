"""Repeats the plan of the step before where possible, without asking the policy."""

from __future__ import annotations

from math import inf

from headway.core.plan import StepPlan
from headway.core.view import StepView
from headway.policies.policy import Policy


class SteadyPlan:
    """The last plan, as long as the policy would repeat it: all residents decode and run, and no job waits.

    A step then costs a few comparisons instead of a plan; that is most steps of an engine that keeps up. The policy
    says until when this holds if no job comes or ends (`Policy.same_plan_until_s`). A newcomer waits, and a job that
    joins or ends makes a new list of residents. Used only for non-overlapping steps of one token per job: with a step
    in flight some residents have nothing to compute, and drafts may need more than a block.
    """

    def __init__(self) -> None:
        self._plan: StepPlan | None = None
        self._until_s = -inf

    def again(self, view: StepView) -> StepPlan | None:
        """The kept plan if it suits this view too, else None. O(1)."""
        plan = self._plan
        if plan is None or plan.run is not view.residents or view.now_s > self._until_s:
            return None
        return plan if _nobody_waits(view) and view.free_blocks >= len(plan.run) else None

    def note(self, plan: StepPlan, view: StepView, policy: Policy) -> None:
        """Keep a plan that may be repeated. O(residents) if it runs all of them, else O(1)."""
        others = plan.admit or plan.preempt or plan.leave or plan.offload or plan.prefetch or plan.chunk_cap
        steady = plan.run is view.residents and not others and _nobody_waits(view)
        has_tokens = plan.token_budget >= len(plan.run)  # a repeated plan gets the engine's whole budget
        if steady and has_tokens and not any(job.prefilling for job in view.residents):
            self._plan, self._until_s = plan, policy.same_plan_until_s(view)
        else:
            self._plan = None


def _nobody_waits(view: StepView) -> bool:
    return not (view.waiting or view.swapped or view.returned)
