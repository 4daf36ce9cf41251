"""Which queued jobs would fit the free blocks and still have room to grow."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headway.core.job import Job
from headway.core.plan import StepPlan
from headway.core.view import StepView
from headway.policies.demand import new_blocks, surely_fits


def residents_next_blocks(view: StepView) -> int:
    """Blocks the residents would take if all of them ran this step. O(residents), O(1) with blocks to spare."""
    if surely_fits(view, len(view.residents), view.max_tokens):
        return 0
    return sum(new_blocks(view, view.residents, view.max_tokens).values())


def residents_known_blocks(view: StepView) -> int:
    """Blocks the residents would take to compute all tokens known of them. O(residents)."""
    known_tokens = sum(job.num_tokens for job in view.residents)
    return sum(new_blocks(view, view.residents, known_tokens).values())


def fitting(
    view: StepView, queued: Sequence[Job], free_blocks: int, *, head_room: int = 1, skip_misfit: bool = False
) -> list[Job]:
    """The leading jobs whose tokens, and `head_room` blocks more for each, fit so many blocks.

    With room to grow a job is not the victim of the very next step (AdaptiveLLM section 1.4). The first that
    does not fit ends it, so that nobody waits for ever because smaller ones always fit; `skip_misfit` passes
    it over. In an empty engine the first may take all there is. O(queued).
    """
    found: list[Job] = []
    for job in queued:
        needed = view.blocks(job.num_tokens)
        alone = not found and not view.residents
        if needed + (0 if alone else head_room) <= free_blocks:
            found.append(job)
            free_blocks -= needed + head_room
        elif not skip_misfit:
            break
    return found


def fitting_or_ready(
    view: StepView, queued: Sequence[Job], free_blocks: int, *, head_room: int
) -> Sequence[Job]:
    """`fitting`, but nobody is kept out of an empty engine by a first job that is not ready.

    Then it is left to the engine who may start. One call of `view.admissible` with nobody resident.
    """
    if queued and not view.residents and not view.admissible(queued[0]):
        return queued
    return fitting(view, queued, free_blocks, head_room=head_room)


def starts_beside(view: StepView, others: Collection[Job], room: int, job: Job) -> bool:
    """Whether a newcomer passes the engine's checks, and `room` has its blocks beside `others` that start before it.

    The first is weighed by the engine alone, which knows what it would find computed already. O(1) and a look-up.
    """
    return (not others or view.blocks(job.num_tokens) <= room) and view.admissible(job)


def starting(view: StepView, plan: StepPlan) -> list[Job]:
    """The first of those a plan admits, as many as have a place and blocks; nobody is looked up. O(them)."""
    return fitting(view, plan.admit[: view.seats_beside(plan.run)], view.free_blocks, head_room=0)
