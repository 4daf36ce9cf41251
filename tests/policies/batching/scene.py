"""Views for batchings: the first come order over jobs that wait, and residents as given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headway.core.cost import CostModel
from headway.core.job import Job
from headway.core.plan import StepOutcome, StepPlan
from headway.core.slo import Slo
from headway.core.view import StepView
from headway.policies.batching.admission import starting
from headway.policies.batching.mixed_step import MixedStep
from headway.policies.batching.step_shapes import shape_of_decodes, split_decodes
from headway.policies.order.arrival import Arrival
from headway.policies.protocols import Batching
from tests.strategies import decoding


class Scene:
    """A batching with its order and what it is to see."""

    def __init__(self, batching: Batching, *, residents: list[Job] | None = None, **view: Any) -> None:
        self.batching = batching
        self.order = Arrival()
        sizes = {"max_run": 8, "max_resident": 8, "max_tokens": 64, "total_blocks": 100, "block_size": 4}
        self.view = StepView(residents=residents or [], admissible=lambda job: True, **{**sizes, **view})

    def wait(self, *jobs: Job) -> Scene:
        """Let jobs wait, in this order."""
        for job in jobs:
            self.order.add(job)
        self.view.waiting = [*self.view.waiting, *jobs]
        return self

    def admissible(self, says: Callable[[Job], bool]) -> Scene:
        """Let the engine say who would pass its checks."""
        self.view.admissible = says
        return self

    def plan(self, leaving: tuple[Job, ...] = ()) -> StepPlan:
        """The batching's plan."""
        return self.batching.plan(self.view, self.order, leaving)

    def admit(self, plan: StepPlan, *jobs: Job) -> None:
        """Tell the batching that the step admitted these."""
        self.batching.observe(StepOutcome(now_s=0.0, plan=plan, admitted=list(jobs)))


def mixed_step(view: StepView, plan: StepPlan, cost: CostModel, graphed_tokens: int = 0) -> MixedStep:
    """The decodes of a plan, and its prompts that have begun or have room."""
    decodes, begun = split_decodes(plan.run)
    alone = shape_of_decodes(decodes, view.tokens_a_decode)
    return MixedStep(cost, alone, [*begun, *starting(view, plan)], graphed_tokens)


def timed(id_: str, tbt_s: float, **fields: Any) -> Job:
    """A resident that decodes, with a target."""
    return decoding(id_, slo=Slo(tbt_s=tbt_s), **{"first_token_s": 0.0, "limit": 500, **fields})
