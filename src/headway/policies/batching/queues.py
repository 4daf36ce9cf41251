"""The two queues of an engine that swaps: who is on the host, and who has nothing computed."""

from __future__ import annotations

from collections.abc import Collection

from headway.core.job import Job, JobState
from headway.core.view import StepView
from headway.policies.batching.candidates import SCAN_AHEAD, startable
from headway.policies.order import Order


def ranked_queues(
    view: StepView, order: Order, leaving: Collection[Job], seats: int
) -> tuple[list[Job], list[Job]]:
    """All swapped jobs, and the first `seats` waiting ones and SCAN_AHEAD more; those leaving left out.

    The most deserving first. O(seats + s log s) with s swapped ones, which host memory bounds, and one
    `order.top`.
    """
    if not (view.waiting or view.swapped):
        return [], []
    wanted = seats + SCAN_AHEAD
    staying = startable(view, order, leaving, wanted + len(view.swapped))
    waiting = [job for job in staying if job.state is JobState.WAITING]
    return _all_swapped(view, order, leaving, staying), waiting[:wanted]


def _all_swapped(view: StepView, order: Order, leaving: Collection[Job], top: Collection[Job]) -> list[Job]:
    """The swapped jobs of the top, then those it does not reach: they rank below it, in an order of their own."""
    found = [job for job in top if job.state is JobState.SWAPPED]
    if len(found) == len(view.swapped):
        return found
    reached = {*found, *leaving}
    return [*found, *order.rank([job for job in view.swapped if job not in reached], view.now_s)]
