from __future__ import annotations

from headway.core.job import Job, JobState
from headway.core.view import StepView
from headway.policies.batching.admission import SCAN_AHEAD, ranked_queues
from headway.policies.order.arrival import Arrival
from headway.policies.order.keyed import ShortestPrompt
from headway.policies.protocols import Order
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
    assert ranked_queues(view, order, (), 2)[0] == SWAPPED
    assert ids(ranked_queues(view, order, (SWAPPED[1],), 2)[0]) == ["s0", "s2"]


def test_those_the_top_reaches_and_those_it_does_not_are_in_one_ranking() -> None:
    # Two more that are short: 35 of the 39 places are for these and the shortest that wait.
    order = ShortestPrompt()
    short = [decoding(f"t{n}", prompt=5 * n + 5, state=JobState.SWAPPED) for n in range(2)]
    view = queued(order, *reversed(SWAPPED), *short, *WAITING)
    assert ranked_queues(view, order, (), 2)[0] == [*short, *SWAPPED]


def test_an_order_that_ranks_only_its_queue_is_followed() -> None:
    # First come, first served puts the job preempted last before the others.
    order = Arrival()
    assert ids(ranked_queues(queued(order, *SWAPPED, *WAITING), order, (), 0)[0]) == ["s2", "s1", "s0"]


def test_swapped_jobs_take_no_place_among_the_waiting() -> None:
    order = Arrival()
    view = queued(order, *SWAPPED, *WAITING)
    assert ranked_queues(view, order, (), 2)[1] == WAITING[: 2 + SCAN_AHEAD]
    assert ranked_queues(view, order, (WAITING[0],), 2)[1] == WAITING[1 : 3 + SCAN_AHEAD]


def test_empty_queues_are_not_asked() -> None:
    assert ranked_queues(StepView(), None, (), 2) == ([], [])  # type: ignore[arg-type]
