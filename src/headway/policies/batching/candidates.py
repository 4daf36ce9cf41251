"""The waiting jobs a step should try to start."""

from __future__ import annotations

from collections.abc import Collection

from headway.core.job import Job
from headway.core.view import StepView
from headway.policies.order import Order

SCAN_AHEAD = 32
"""Candidates beyond the free seats: that many not-ready jobs may be passed over before admission ends."""


def candidates(view: StepView, order: Order, leaving: Collection[Job], seats: int | None = None) -> list[Job]:
    """Waiting or swapped jobs for `seats` of the free seats (default: all), as `first_queued`."""
    return first_queued(view, order, leaving, view.seats if seats is None else min(seats, view.seats))


def first_queued(view: StepView, order: Order, leaving: Collection[Job], seats: int) -> list[Job]:
    """The first `seats` jobs that wait or are swapped, and SCAN_AHEAD more; none without a seat. See `startable`."""
    if seats <= 0 or not (view.waiting or view.swapped):
        return []
    wanted = seats + SCAN_AHEAD
    return startable(view, order, leaving, wanted)


def startable(view: StepView, order: Order, leaving: Collection[Job], most: int) -> list[Job]:
    """The first `most` waiting or swapped jobs that neither leave nor have their KV loaded just now."""
    first = order.top(most + len(leaving) + len(view.fetching), view.now_s)
    if not (leaving or view.fetching):
        return first
    return [job for job in first if job not in leaving and job not in view.fetching][:most]
