from __future__ import annotations

from headway.core.job import Job
from headway.core.view import StepView
from headway.policies.batching.admission import (
    fitting,
    fitting_or_ready,
    residents_known_blocks,
    residents_next_blocks,
    starts_beside,
)
from tests.strategies import decoding, ids, make_job, prefilling

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


def test_nobody_is_kept_out_of_an_empty_engine_by_one_that_is_not_ready() -> None:
    jobs = [make_job("a", prompt=40), make_job("b", prompt=1)]
    assert fitting_or_ready(VIEW, jobs, 3, head_room=1) == jobs
    view = StepView(block_size=4, admissible=lambda job: True)
    assert fitting_or_ready(view, jobs, 3, head_room=1) == []
    assert fitting_or_ready(VIEW, [], 3, head_room=1) == []


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
