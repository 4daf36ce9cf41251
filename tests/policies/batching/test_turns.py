"""Whose step comes: rounds by hand, and as `paced` plans them."""

from __future__ import annotations

import pytest

from headway.core.plan import StepOutcome, StepPlan
from headway.policies.batching.paced import Paced
from headway.policies.batching.rounds import Round, Rounds
from headway.policies.batching.step_shapes import decode_shape
from headway.policies.batching.turns import Turn, Turns
from tests.policies.batching.scene import Scene
from tests.policies.batching.test_paced import timed
from tests.policies.batching.test_rounds import SharedKernel, prompts
from tests.strategies import decoding, ids, prefilling


def turns_of(ratios: list[float], *, tokens: int = 16, num_decodes: int = 3) -> list[Turn]:
    """Whose step it is, where one step is predicted to take so many times as long as two, step by step."""
    turns, found = Turns(), []
    for ratio in ratios:
        turns.begin()
        rounds = Rounds(SharedKernel(), apart=turns.apart(ratio))
        found.append(turns.whose(Round(rounds, decode_shape(num_decodes, 30), prompts(500)), tokens))
        turns.observe()
    return found


BOTH, PROMPTS, DECODES = Turn.BOTH, Turn.PROMPTS, Turn.DECODES


def test_where_one_step_is_dear_the_1st_2nd_4th_and_8th_round_has_one_and_the_others_two() -> None:
    two = [PROMPTS, DECODES]
    assert turns_of([2.0] * 14) == [BOTH, BOTH, *two, BOTH, *two, *two, *two, BOTH, *two]


def test_where_both_ways_are_alike_two_steps_are_tried_in_the_same_rounds() -> None:
    two = [PROMPTS, DECODES]
    assert turns_of([1.05] * 9) == [*two, *two, BOTH, *two, BOTH, BOTH]


def test_where_one_step_is_clearly_less_nothing_is_tried() -> None:
    assert turns_of([1.0] * 9) == [BOTH] * 9


def test_the_decodes_of_a_round_come_whatever_is_predicted_meanwhile() -> None:
    assert turns_of([2.0, 2.0, 2.0, 0.5, 0.5]) == [BOTH, BOTH, PROMPTS, DECODES, BOTH]


def test_without_tokens_for_prompts_or_without_decodes_there_is_nothing_to_share() -> None:
    assert turns_of([2.0] * 3, tokens=0) == [DECODES] * 3
    assert turns_of([2.0] * 5, num_decodes=0) == [BOTH] * 5


def carried_out(at: Scene, steps: int) -> list[tuple[list[str], list[str], int]]:
    """Who runs, who starts and the budget of so many steps; who is there stays as it is."""
    found = []
    for _ in range(steps):
        plan = at.plan()
        assert at.plan() == plan, "asked twice it gave two plans"
        found.append((ids(plan.run), ids(plan.admit), plan.token_budget))
        at.batching.observe(StepOutcome(now_s=0.0, plan=StepPlan()))
    return found


@pytest.mark.parametrize("tbt_s", [None, 20.0])
def test_paced_pauses_the_decodes_for_a_step_of_prompts(tbt_s: float | None) -> None:
    # Beside prompts each decode costs a second more. 20 s are 3 of decodes and 17 of prompts: 150 tokens, or in whole
    # grains 144.
    streams = [timed(f"x{n}", tbt_s) if tbt_s else decoding(f"x{n}") for n in range(10)]
    at = Scene(
        Paced(SharedKernel(), share=1.0, most_dearer=0.0),
        residents=[*streams, prefilling("b", prompt=500, computed=10)],
        free_blocks=400,
        total_blocks=900,
        max_tokens=640,
        max_run=16,
        max_resident=16,
    )
    names = [job.id for job in streams]
    alone: tuple[list[str], list[str], int] = (names, [], 10)
    chunk: tuple[list[str], list[str], int] = (["b"], [], 144 if tbt_s else 630)
    steps = carried_out(at, 7)
    assert [run for run, _, _ in steps[:2]] == [[*names, "b"]] * 2, "what it costs is tried twice"
    assert steps[2:4] == [chunk, alone]
    assert steps[5:] == [chunk, alone]


def test_nobody_pauses_for_prompts_that_could_not_start() -> None:
    at = Scene(
        Paced(SharedKernel(), share=1.0),
        residents=[timed("x", 40.0), timed("y", 40.0)],
        free_blocks=0,
        total_blocks=900,
        max_tokens=640,
    )
    at.wait(*prompts(500)).admissible(lambda job: False)
    assert all(run == ["x", "y"] for run, _, _ in carried_out(at, 8))


def test_turns_can_be_switched_off() -> None:
    at = Scene(
        Paced(SharedKernel(), share=1.0, turns=False),
        residents=[timed("x", 40.0), prefilling("b", prompt=500, computed=10)],
        free_blocks=400,
        total_blocks=900,
        max_tokens=640,
    )
    assert all(run == ["x", "b"] for run, _, _ in carried_out(at, 8))
