from __future__ import annotations

from headway.core.job import Job, JobState
from headway.core.view import StepView
from headway.policies.batching.candidates import SCAN_AHEAD
from headway.policies.batching.queues import ranked_swapped, ranked_waiting
from headway.policies.order import Order
from headway.policies.order.arrival import Arrival
from headway.policies.order.prompt_length import ShortestPrompt
from tests.strategies import decoding, ids, make_job

SWAPPED = [decoding(f"s{n}", prompt=100 + n, state=JobState.SWAPPED, num_preemptions=1) for n in range(3)]
WAITING = [make_job(f"w{n:02}", prompt=n + 1) for n in range(60)]


def queued(order: Order, *jobs: Job) -> StepView:
    """A view of these, in the order's index."""
    for job in jobs:
        order.add(job)
    return StepView(
        swapped=[job for job in jobs if job.state is JobState.SWAPPED],
        waiting=[job for job in jobs if job.state is JobState.WAITING],
    )


def test_swapped_jobs_far_behind_in_the_queue_are_all_found() -> None:
    # Sixty shorter ones stand before them.
    order = ShortestPrompt()
    view = queued(order, *reversed(SWAPPED), *WAITING)
    assert ranked_swapped(view, order, ()) == SWAPPED
    assert ids(ranked_swapped(view, order, (SWAPPED[1],))) == ["s0", "s2"]


def test_an_order_that_ranks_only_its_queue_is_followed() -> None:
    # First come, first served puts the job preempted last before the others.
    order = Arrival()
    assert ids(ranked_swapped(queued(order, *SWAPPED, *WAITING), order, ())) == ["s2", "s1", "s0"]


def test_swapped_jobs_take_no_place_among_the_waiting() -> None:
    order = Arrival()
    view = queued(order, *SWAPPED, *WAITING)
    assert ranked_waiting(view, order, (), 2) == WAITING[: 2 + SCAN_AHEAD]
    assert ranked_waiting(view, order, (WAITING[0],), 2) == WAITING[1 : 3 + SCAN_AHEAD]


def test_an_empty_queue_and_a_full_engine_are_not_asked() -> None:
    order = None
    assert ranked_swapped(StepView(), order, ()) == []  # type: ignore[arg-type]
    assert ranked_waiting(StepView(), order, (), 2) == []  # type: ignore[arg-type]
    assert ranked_waiting(StepView(waiting=WAITING), order, (), 0) == []  # type: ignore[arg-type]
