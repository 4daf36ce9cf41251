"""How prompts are spread where memory keeps others waiting, by hand: blocks of 4 tokens, answers of 40."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job
from headway.core.slo import Slo
from headway.policies.batching.paced import Paced
from headway.policies.order import Order
from headway.policies.order.on_time import OnTime
from tests.policies.batching.scene import Scene
from tests.policies.instance import LinearCost
from tests.strategies import UNTIMED, decoding, ids, make_job, prefilling

DECODES = [decoding(f"{n}", output=3, limit=500) for n in range(4)]
LONG = 400


class FreeBeside(LinearCost):
    """A tenth of a second a token, and 20 s at least: 200 tokens beside the decodes cost nothing."""

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of a step."""
        return max(20.0, LinearCost.step_s(self, shape))


def scene(
    *residents: Job,
    answers: int = 1,
    order: Order | None = None,
    spread: float = 0.5,
    cost: CostModel | None = None,
    **view: Any,
) -> Scene:
    """Four decodes and these, after so many answers of 40 tokens; 100 blocks are free."""
    batching = Paced(cost or FreeBeside(), spread=spread, most_dearer=0.0)
    for number in range(answers):
        batching.finished(make_job(f"ended{number}", num_output_tokens=40))
    sizes = {"free_blocks": 100, "total_blocks": 400, "max_tokens": 640, "max_run": 16, "max_resident": 16}
    made = Scene(batching, residents=[*DECODES, *residents], **{**sizes, **view})
    made.order = order or made.order  # type: ignore[assignment]
    return made


def test_what_has_room_is_spread_over_twice_the_steps_until_an_answer_ends() -> None:
    # One of four answers of 40 tokens ends in 10 steps; 400 prompt tokens, which fill all that is free, in 20.
    at = scene().wait(make_job("a", prompt=LONG), make_job("kept out"))
    assert at.plan().token_budget == 4 + 20
    # Those that have begun count with what they lack.
    at = scene(prefilling("b", prompt=300, computed=100)).wait(
        make_job("a", prompt=LONG), make_job("kept out")
    )
    assert at.plan().token_budget == 4 + 30
    # A newcomer that finds no room does not.
    at = scene(prefilling("b", prompt=500, computed=100), free_blocks=2).wait(make_job("kept out"))
    assert at.plan().token_budget == 4 + 20


def test_a_few_tokens_always_go_through() -> None:
    at = scene(prefilling("b", prompt=300, computed=90), free_blocks=0).wait(make_job("kept out"))
    assert at.plan().token_budget == 4 + 16


def test_seats_keep_others_waiting_too() -> None:
    at = scene(prefilling("b", prompt=LONG), max_run=5, max_resident=5).wait(make_job("kept out"))
    assert at.plan().token_budget == 4 + 20


@pytest.mark.parametrize(
    "at",
    [
        scene().wait(make_job("a", prompt=LONG)),
        scene(answers=0).wait(make_job("a", prompt=LONG), make_job("kept out")),
        scene(spread=0).wait(make_job("a", prompt=LONG), make_job("kept out")),
        scene(cost=LinearCost()).wait(make_job("a", prompt=LONG), make_job("kept out")),
        scene(cost=UnknownCost()).wait(make_job("a", prompt=LONG), make_job("kept out")),
        scene(free_blocks=0).wait(make_job("kept out")),
    ],
    ids=["all have room", "answers not known", "off", "saves nothing", "costs not known", "no prompt"],
)
def test_else_steps_are_as_long_as_they_come(at: Scene) -> None:
    assert at.plan().token_budget == 640


def test_who_leaves_is_kept_from_nothing() -> None:
    leaves = make_job("leaves")
    at = scene().wait(make_job("a", prompt=LONG), leaves)
    assert at.plan(leaving=(leaves,)).token_budget == 640


def test_without_decodes_too() -> None:
    at = scene().wait(make_job("a", prompt=LONG), make_job("kept out"))
    at.view.residents = []
    assert at.plan().token_budget == 640


def test_who_has_begun_goes_on() -> None:
    # By rank the one that came later would be next: a step has less than the other lacks.
    begun = prefilling("begun", prompt=300, computed=0, arrival_s=9.0)
    at = scene(begun).wait(make_job("a", prompt=LONG), make_job("kept out"))
    at.order.add(begun)
    at.order.remove(begun)
    plan = at.plan()
    assert ids(plan.run)[-1] == "begun"
    assert not plan.chunk_cap


def hurried(newcomer: Job, *others: Job) -> Scene:
    """The same with an order that knows who can be in time: 0.1 s a token."""
    order = OnTime(LinearCost())
    at = scene(order=order)
    for job in (*DECODES, *at.view.residents[4:]):
        order.add(job)
        order.remove(job)
    return at.wait(newcomer, *others)


def test_who_can_be_in_time_gets_twelve_times_as_much() -> None:
    # 400 tokens take 40 s: the first can be in time, the second cannot.
    for ttft_s, tokens in ((90.0, 12 * 20), (30.0, 20)):
        first = make_job("a", prompt=LONG, slo=Slo(ttft_s=ttft_s))
        plan = hurried(first, make_job("kept out", prompt=2 * LONG)).plan()
        assert plan.token_budget == 4 + tokens


def test_an_order_that_cannot_tell_has_all_with_targets_hurry() -> None:
    at = scene().wait(make_job("a", prompt=LONG, slo=Slo(ttft_s=30.0)), make_job("kept out"))
    assert at.plan().token_budget == 4 + 12 * 20


@UNTIMED
@given(
    prompts=st.lists(st.integers(1, 300), min_size=1, max_size=9),
    free_blocks=st.integers(0, 300),
    spread=st.floats(0.0, 50.0),
)
def test_spread_takes_tokens_and_nothing_else(prompts: list[int], free_blocks: int, spread: float) -> None:
    waiting = [make_job(f"w{n}", prompt=tokens) for n, tokens in enumerate(prompts)]
    plans = [scene(spread=each, free_blocks=free_blocks).wait(*waiting).plan() for each in (spread, 0.0)]
    few, many = plans
    assert (ids(few.run), ids(few.admit), few.chunk_cap) == (ids(many.run), ids(many.admit), many.chunk_cap)
    assert min(many.token_budget, 4 + 16) <= few.token_budget <= many.token_budget
