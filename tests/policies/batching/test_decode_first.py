from __future__ import annotations

import pytest

from headway.core.job import Job
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.batching.decode_first import DecodeFirst
from headway.policies.batching.step_shapes import decodes_first
from headway.policies.order.keyed import ShortestPrompt
from tests.policies.batching.scene import Scene
from tests.strategies import decoding, ids, make_job, prefilling

DECODES = [decoding("d0"), decoding("d1"), decoding("d2")]
PREFILLS = [prefilling("p0"), prefilling("p1", computed=4)]


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        ([PREFILLS[0], DECODES[0], PREFILLS[1], DECODES[1]], ["d0", "d1", "p0", "p1"]),
        ([PREFILLS[0], DECODES[2]], ["d2", "p0"]),
        ([DECODES[1], PREFILLS[1], DECODES[0]], ["d1", "d0", "p1"]),
    ],
)
def test_jobs_in_prefill_move_behind_the_others(jobs: list[Job], expected: list[str]) -> None:
    assert ids(decodes_first(jobs)) == expected


@pytest.mark.parametrize("jobs", [[], DECODES, PREFILLS, DECODES + PREFILLS])
def test_who_stands_right_already_is_left_as_the_same_object(jobs: list[Job]) -> None:
    assert decodes_first(jobs) is jobs


def test_every_resident_runs_and_the_waiting_follow_in_rank_order() -> None:
    plan = Scene(DecodeFirst(), residents=[*DECODES, PREFILLS[0]]).wait(make_job("w1"), make_job("w0")).plan()
    assert (ids(plan.run), ids(plan.admit)) == (["d0", "d1", "d2", "p0"], ["w1", "w0"])
    assert (plan.whole_prompts, dict(plan.chunk_cap)) == (False, {})


def test_an_order_that_ranks_residents_has_its_prefills_behind_the_decodes() -> None:
    # By prompt length p (3) comes before d (9); but p is still in prefill.
    order = ShortestPrompt()
    jobs = [make_job("p", prompt=3), decoding("d", prompt=9)]
    for job in jobs:
        order.add(job)
    view = StepView(residents=jobs, max_run=4, max_resident=4, max_tokens=8)
    assert ids(DecodeFirst().plan(view, order, ()).run) == ["d", "p"]


@pytest.mark.parametrize(("token_budget", "expected"), [(None, 64), (10, 10), (64, 64), (999, 64)])
def test_a_fixed_budget_is_bounded_by_the_engines(token_budget: int | None, expected: int) -> None:
    assert Scene(DecodeFirst(token_budget)).plan().token_budget == expected


@pytest.mark.parametrize("token_budget", [0, -1])
def test_a_budget_below_one_is_refused(token_budget: int) -> None:
    with pytest.raises(ConfigError, match=f"token_budget is {token_budget}; accepted: 1 or more"):
        DecodeFirst(token_budget)


@pytest.mark.parametrize(("free", "started"), [(3, []), (4, ["b"]), (5, ["b"]), (6, ["b", "c"])])
def test_with_head_room_whoever_starts_leaves_room_for_all_known_tokens(
    free: int, started: list[str]
) -> None:
    # Blocks of 4. p has 4 of 10 tokens: two blocks more. b takes 1 and leaves 1, c likewise.
    scene = Scene(
        DecodeFirst(head_room=1),
        residents=[prefilling("p", prompt=10, computed=4)],
        free_blocks=free,
        max_tokens=2,
    )
    scene.wait(make_job("b", prompt=4), make_job("c", prompt=4))
    assert ids(scene.admissible(lambda job: False).plan().admit) == started
