from __future__ import annotations

import pytest

from headway.core.job import Job, JobState
from headway.core.view import StepView
from headway.policies.batching.admission import (
    SCAN_AHEAD,
    candidates,
    fitting,
    starts_beside,
)
from headway.policies.batching.decode_first import DecodeFirst, residents_known_blocks
from headway.policies.batching.whole_prompts import ranked_queues, residents_next_blocks
from headway.policies.order.arrival import Arrival
from headway.policies.order.keyed import ShortestPrompt
from headway.policies.protocols import Order
from tests.policies.batching.scene import Scene
from tests.strategies import decoding, ids, make_job, prefilling

MANY = [make_job(f"{place:03}") for place in range(100)]


@pytest.mark.parametrize(("max_run", "seats"), [(5, 3), (3, 1)])
def test_the_free_seats_and_a_stated_number_more(max_run: int, seats: int) -> None:
    scene = Scene(DecodeFirst(), residents=[decoding("a"), decoding("b")], max_run=max_run).wait(*MANY)
    assert candidates(scene.view, scene.order, ()) == MANY[: seats + SCAN_AHEAD]


def test_nobody_without_a_seat() -> None:
    scene = Scene(DecodeFirst(), residents=[decoding()], max_run=1).wait(*MANY)
    assert candidates(scene.view, scene.order, ()) == []


@pytest.mark.parametrize(("seats", "wanted"), [(0, 0), (1, 1 + SCAN_AHEAD), (9, 8 + SCAN_AHEAD)])
def test_fewer_seats_may_be_asked_for_but_not_more(seats: int, wanted: int) -> None:
    scene = Scene(DecodeFirst()).wait(*MANY)
    assert candidates(scene.view, scene.order, (), seats=seats) == MANY[:wanted]


def test_those_who_leave_are_replaced_by_the_next() -> None:
    scene = Scene(DecodeFirst(), max_run=1).wait(*MANY)
    leaving = {MANY[0], MANY[2], MANY[90]}
    found = candidates(scene.view, scene.order, leaving)
    assert len(found) == 1 + SCAN_AHEAD
    assert ids(found[:3]) == ["001", "003", "004"]


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


VIEW = StepView(block_size=4, max_tokens=8)
RESIDENT = decoding("r", prompt=8)


def test_head_room_is_kept_for_each() -> None:
    # 2 + 1, 1 + 1, 3 + 1.
    jobs = [make_job("a", prompt=8), make_job("b", prompt=1), make_job("c", prompt=9)]
    view = StepView(block_size=4, residents=[RESIDENT])
    assert [len(fitting(view, jobs, free)) for free in (2, 3, 4, 5, 8, 9)] == [0, 1, 1, 2, 2, 3]
    assert ids(fitting(view, jobs, 6, head_room=0)) == ["a", "b", "c"]


def test_an_empty_engine_asks_no_head_room_of_the_first() -> None:
    jobs = [make_job("a", prompt=8), make_job("b", prompt=1)]
    assert [len(fitting(VIEW, jobs, free)) for free in (1, 2, 4, 5)] == [0, 1, 1, 2]


def test_the_first_to_start_is_weighed_by_the_engine_alone_and_who_has_no_room_beside_it_costs_no_look_up() -> (
    None
):
    asked: list[str] = []

    def admissible(job: Job) -> bool:
        asked.append(job.id)
        return job.id != "held"

    view = StepView(block_size=4, admissible=admissible)
    first, second, held = (
        make_job("first", prompt=9),
        make_job("second", prompt=8),
        make_job("held", prompt=1),
    )
    assert starts_beside(view, [], 0, first)
    assert [starts_beside(view, [first], room, second) for room in (1, 2)] == [False, True]
    assert not starts_beside(view, [first], 2, held)
    assert asked == ["first", "second", "held"]


def test_residents_next_blocks_are_those_of_one_step() -> None:
    # r opens one; of p's 16 uncomputed tokens 7 fit the budget of 8 behind r, into two blocks.
    view = StepView(block_size=4, max_tokens=8, residents=[RESIDENT, prefilling("p", prompt=16)])
    assert residents_next_blocks(view) == 1 + 2
    assert residents_known_blocks(view) == 1 + 4


def test_with_blocks_to_spare_residents_are_not_looked_at() -> None:
    view = StepView(block_size=4, max_tokens=8, residents=[RESIDENT], free_blocks=3)
    assert residents_next_blocks(view) == 0
