"""Steps whose plan is that of the step before, so that no policy is asked."""

from __future__ import annotations

from math import inf

from headway.core.plan import StepPlan
from headway.core.view import StepView
from headway.policies.policy import Policy


class SteadyPlan:
    """The last plan, while the policy would make it again: all residents decode and run, and none waits.

    Then a step costs a few comparisons in place of a plan: most steps of an engine that keeps up. The policy says until
    when that holds if no job comes or ends (`Policy.same_plan_until_s`). A newcomer waits, and a job that joins or ends
    makes a new list of residents. Only for steps one at a time of a token each: with a step in flight some residents
    have nothing to compute, and drafts may want more than a block.
    """

    def __init__(self) -> None:
        self._plan: StepPlan | None = None
        self._until_s = -inf

    def again(self, view: StepView) -> StepPlan | None:
        """The plan, if it is this view's too. O(1)."""
        plan = self._plan
        if plan is None or plan.run is not view.residents or view.now_s > self._until_s:
            return None
        return plan if _nobody_waits(view) and view.free_blocks >= len(plan.run) else None

    def note(self, plan: StepPlan, view: StepView, policy: Policy) -> None:
        """Keep a plan that may do for the steps to come. O(residents) where it runs them all, else O(1)."""
        others = plan.admit or plan.preempt or plan.leave or plan.offload or plan.prefetch or plan.chunk_cap
        steady = plan.run is view.residents and not others and _nobody_waits(view)
        has_tokens = plan.token_budget >= len(plan.run)  # made again it has all of the engine's
        if steady and has_tokens and not any(job.prefilling for job in view.residents):
            self._plan, self._until_s = plan, policy.same_plan_until_s(view)
        else:
            self._plan = None


def _nobody_waits(view: StepView) -> bool:
    return not (view.waiting or view.swapped or view.returned)
