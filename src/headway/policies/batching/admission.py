"""Which queued jobs a step should try to start, and which of them fit."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headway.core.job import Job
from headway.core.plan import StepPlan
from headway.core.view import StepView
from headway.policies.protocols import Order

SCAN_AHEAD = 32
"""Candidates beyond the free seats: that many not-ready jobs may be passed over before admission ends."""


def candidates(view: StepView, order: Order, leaving: Collection[Job], seats: int | None = None) -> list[Job]:
    """Queued jobs for `seats` of the free seats (default: all), as `first_queued`."""
    return first_queued(view, order, leaving, view.seats if seats is None else min(seats, view.seats))


def first_queued(view: StepView, order: Order, leaving: Collection[Job], seats: int) -> list[Job]:
    """The first `seats` jobs that wait or are swapped, and SCAN_AHEAD more; none without a seat. See `startable`."""
    if seats <= 0 or not (view.waiting or view.swapped):
        return []
    return startable(view, order, leaving, seats + SCAN_AHEAD)


def startable(view: StepView, order: Order, leaving: Collection[Job], most: int) -> list[Job]:
    """The first `most` waiting or swapped jobs that neither leave nor have their KV loaded just now."""
    first = order.top(most + len(leaving) + len(view.fetching), view.now_s)
    if not (leaving or view.fetching):
        return first
    return [job for job in first if job not in leaving and job not in view.fetching][:most]


def fitting(
    view: StepView, queued: Sequence[Job], free_blocks: int, *, head_room: int = 1, skip_misfit: bool = False
) -> list[Job]:
    """The leading jobs whose tokens, and `head_room` blocks more for each, fit so many blocks.

    With room to grow a job is not the victim of the very next step (AdaptiveLLM section 1.4). The first that
    does not fit ends the list, so that no job waits for ever because smaller ones always fit; `skip_misfit` passes
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
    """`fitting`, but a first job that is not ready keeps no other out of an empty engine.

    Then it is left to the engine which may start. One call of `view.admissible` in an empty engine.
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
    """The first of those a plan admits, as many as have a place and blocks; none is looked up. O(them)."""
    return fitting(view, plan.admit[: view.seats_beside(plan.run)], view.free_blocks, head_room=0)
