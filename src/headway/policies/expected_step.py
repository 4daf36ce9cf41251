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
    """The plan filled as `core.fill` would, were there blocks for all and everybody ready. O(run + started).

    A decode is taken to compute all the drafts that it may; who is on the way back from the host computes nothing.
    """
    step = ExpectedStep()
    budget = plan.token_budget
    for job in plan.run:
        if job in view.restoring:
            continue
        left = left_tokens(job)
        wanted = view.tokens_a_decode if left == 1 else left
        budget -= _grant(step.shape, job, min(wanted, budget), plan.chunk_cap)
    room = budget
    for job in plan.admit[: view.seats_beside(plan.run)]:
        swapped = job.state is JobState.SWAPPED
        cut = plan.whole_prompts and not (swapped or starts_whole(job.num_tokens, room, plan.token_budget))
        if budget <= 0 or cut:
            break
        granted = _grant(step.shape, job, min(left_tokens(job), budget), plan.chunk_cap)
        budget -= granted
        room -= granted if swapped else job.num_tokens
        step.starting.add(job)
    return step


def _grant(shape: BatchShape, job: Job, most: int, caps: Mapping[Job, int]) -> int:
    """Put a job into the shape with so many tokens, or its cap, and return what it gets."""
    granted = min(most, caps.get(job, most))
    if granted <= 0:
        return 0
    shape.add(granted, job.num_found_tokens)
    return granted
