"""The two queues of an engine that swaps: who is on the host, and who has nothing computed."""

from __future__ import annotations

from collections.abc import Collection

from headway.core.job import Job, JobState
from headway.core.view import StepView
from headway.policies.batching.candidates import SCAN_AHEAD
from headway.policies.order import Order


def ranked_swapped(view: StepView, order: Order, leaving: Collection[Job]) -> list[Job]:
    """All swapped jobs that stay, most deserving first. O(s log s) in swapped ones, which host memory bounds."""
    if not view.swapped:
        return []
    # Those the top has not reached rank below it, and are ranked by themselves.
    top = order.top(len(view.swapped) + SCAN_AHEAD, view.now_s)
    found = [job for job in top if job.state is JobState.SWAPPED]
    reached = set(found)
    rest = [job for job in view.swapped if job not in reached]
    return [job for job in [*found, *order.rank(rest, view.now_s)] if job not in leaving]


def ranked_waiting(view: StepView, order: Order, leaving: Collection[Job], seats: int) -> list[Job]:
    """The first `seats` waiting jobs and SCAN_AHEAD more, swapped ones and those leaving left out."""
    if seats <= 0 or not view.waiting:
        return []
    wanted = seats + SCAN_AHEAD
    top = order.top(wanted + len(view.swapped) + len(leaving), view.now_s)
    return [job for job in top if job.state is JobState.WAITING and job not in leaving][:wanted]
