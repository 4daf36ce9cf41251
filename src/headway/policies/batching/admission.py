"""Selects the queued jobs that a step should try to start, and those that fit."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headway.core.job import Job
from headway.core.plan import StepPlan
from headway.core.view import StepView
from headway.policies.protocols import Order

SCAN_AHEAD = 32
"""Candidates beyond the free seats: this many jobs that are not ready may be skipped before admission ends."""


def candidates(view: StepView, order: Order, leaving: Collection[Job], seats: int | None = None) -> list[Job]:
    """Queued jobs for `seats` of the free seats (default: all); see `first_queued`."""
    return first_queued(view, order, leaving, view.seats if seats is None else min(seats, view.seats))


def first_queued(view: StepView, order: Order, leaving: Collection[Job], seats: int) -> list[Job]:
    """The first `seats` waiting or swapped jobs, and SCAN_AHEAD more; none without a seat. See `startable`."""
    if seats <= 0 or not (view.waiting or view.swapped):
        return []
    return startable(view, order, leaving, seats + SCAN_AHEAD)


def startable(view: StepView, order: Order, leaving: Collection[Job], most: int) -> list[Job]:
    """The first `most` waiting or swapped jobs that neither leave nor are loading their KV."""
    first = order.top(most + len(leaving) + len(view.fetching), view.now_s)
    if not (leaving or view.fetching):
        return first
    return [job for job in first if job not in leaving and job not in view.fetching][:most]


def fitting(
    view: StepView, queued: Sequence[Job], free_blocks: int, *, head_room: int = 1, skip_misfit: bool = False
) -> list[Job]:
    """The leading jobs whose tokens, with `head_room` extra blocks for each, fit into `free_blocks`.

    Head room keeps a job from being the victim of the very next step (AdaptiveLLM section 1.4). The first job that does
    not fit ends the list, so that it cannot wait for ever behind smaller ones; with `skip_misfit` it is skipped. In an
    empty engine the first job may take everything. O(queued).
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
    """`fitting`, except that in an empty engine a first job that is not ready does not block the others.

    The engine then decides which of them may start. Calls `view.admissible` once in an empty engine.
    """
    if queued and not view.residents and not view.admissible(queued[0]):
        return queued
    return fitting(view, queued, free_blocks, head_room=head_room)


def starts_beside(view: StepView, others: Collection[Job], room: int, job: Job) -> bool:
    """Whether a newcomer passes the engine's checks, and `room` holds its blocks next to `others` that start before it.

    For the first newcomer only the engine is asked, since it knows what is computed already. O(1) and a lookup.
    """
    return (not others or view.blocks(job.num_tokens) <= room) and view.admissible(job)


def starting(view: StepView, plan: StepPlan) -> list[Job]:
    """The first jobs that a plan admits, as far as seats and blocks reach; makes no lookup. O(result)."""
    return fitting(view, plan.admit[: view.seats_beside(plan.run)], view.free_blocks, head_room=0)
