"""The waiting jobs a step should try to start."""

from __future__ import annotations

from collections.abc import Collection

from headway.core.job import Job
from headway.core.view import StepView
from headway.policies.order import Order

SCAN_AHEAD = 32
"""Candidates beyond the free seats: that many not-ready jobs may be passed over before admission ends."""


def candidates(view: StepView, order: Order, leaving: Collection[Job], seats: int | None = None) -> list[Job]:
    """The first `seats` (default: all free ones) waiting or swapped jobs and SCAN_AHEAD more, without those leaving."""
    wanted = view.seats if seats is None else min(seats, view.seats)
    if wanted <= 0 or not (view.waiting or view.swapped):
        return []
    if not leaving:
        return order.top(wanted + SCAN_AHEAD, view.now_s)
    staying = [job for job in order.top(wanted + SCAN_AHEAD + len(leaving), view.now_s) if job not in leaving]
    return staying[: wanted + SCAN_AHEAD]
