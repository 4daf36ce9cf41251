"""What a plan will make of a step, as far as can be told before it is filled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headway.core.batch_shape import BatchShape
from headway.core.fill import starts_whole
from headway.core.job import Job, JobState
from headway.core.plan import StepPlan
from headway.core.view import StepView
from headway.policies.batching.step_shapes import left_tokens


@dataclass(slots=True)
class ExpectedStep:
    """The step's work, and the jobs of `admit` that are reached while seats and tokens last."""

    shape: BatchShape = field(default_factory=BatchShape)
    starting: set[Job] = field(default_factory=set)


def expect_step(view: StepView, plan: StepPlan) -> ExpectedStep:
    """The plan filled as `core.fill` would, were there blocks for all and everybody ready. O(run + started)."""
    step = ExpectedStep()
    budget = plan.token_budget
    for job in plan.run:
        budget -= _grant(step.shape, job, budget, plan.chunk_cap)
    room = budget
    for job in plan.admit[: view.seats_beside(plan.run)]:
        swapped = job.state is JobState.SWAPPED
        cut = plan.whole_prompts and not (swapped or starts_whole(job.num_tokens, room, plan.token_budget))
        if budget <= 0 or cut:
            break
        granted = _grant(step.shape, job, budget, plan.chunk_cap)
        budget -= granted
        room -= granted if swapped else job.num_tokens
        step.starting.add(job)
    return step


def _grant(shape: BatchShape, job: Job, budget: int, caps: Mapping[Job, int]) -> int:
    """Put a job into the shape, and return the tokens it gets."""
    granted = min(left_tokens(job), budget, caps.get(job, budget))
    if granted <= 0:
        return 0
    shape.add(granted, job.num_found_tokens)
    return granted
