"""What a planned step is to be shared out among, gathered once for all who weigh how long it should be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.core.batch_shape import BatchShape
from headway.core.job import Job
from headway.core.plan import StepPlan
from headway.core.view import StepView
from headway.policies.batching.decode_first import split_decodes
from headway.policies.batching.fitting import starting
from headway.policies.batching.step_shapes import shape_of_decodes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """All who decode, as a step of their own, and the prompts that have begun or have room; `most_tokens` for all.

    `behind` counts the jobs whose prompts are still to compute, those without room included.
    """

    decodes: BatchShape
    prompts: Sequence[Job]
    most_tokens: int
    behind: int


def step_work(view: StepView, plan: StepPlan) -> StepWork:
    """That of a plan whose prompts stand behind its decodes. O(running + newcomers with a place)."""
    decodes, begun = split_decodes(plan.run)
    return StepWork(
        decodes=shape_of_decodes(decodes, view.tokens_a_decode),
        prompts=[*begun, *starting(view, plan)],
        most_tokens=plan.token_budget,
        behind=len(begun) + len(view.waiting) + len(view.swapped),
    )
