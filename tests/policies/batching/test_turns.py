"""Whose step comes: rounds by hand, and as `paced` plans them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batch_shape import BatchShape
from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.policies.batching.paced import Paced
from headway.policies.batching.rounds import Round, Rounds, Turn, Turns
from headway.policies.batching.step_shapes import decode_shape
from headway.policies.presets import build_policy, find_preset
from tests.policies.batching.scene import Scene
from tests.policies.batching.test_paced import timed
from tests.policies.batching.test_rounds import SharedKernel, prompts
from tests.policies.contract import Workload, check_drains, hurried, workloads
from tests.policies.instance import LinearCost
from tests.strategies import SOME, decoding, ids, prefilling


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
        at.batching.observe(StepOutcome(now_s=0.0, plan=plan, num_tokens=plan.token_budget))
    return found


def dear(residents: list[Job], **view: Any) -> Scene:
    """Paced steps as long as they come, in which each decode costs a second more beside prompts."""
    return Scene(
        Paced(SharedKernel(), share=1.0, short_steps=False),
        residents=residents,
        **{
            "free_blocks": 400,
            "total_blocks": 900,
            "max_tokens": 640,
            "max_run": 16,
            "max_resident": 16,
            **view,
        },
    )


@pytest.mark.parametrize("tbt_s", [None, 20.0])
def test_paced_pauses_the_decodes_for_a_step_of_prompts(tbt_s: float | None) -> None:
    # Beside prompts each decode costs a second more. 20 s are 3 of decodes and 17 of prompts: 150 tokens, or in whole
    # grains 144.
    streams = [timed(f"x{n}", tbt_s) if tbt_s else decoding(f"x{n}") for n in range(10)]
    at = dear([*streams, prefilling("b", prompt=500, computed=10)])
    names = [job.id for job in streams]
    alone: tuple[list[str], list[str], int] = (names, [], 10)
    chunk: tuple[list[str], list[str], int] = (["b"], [], 144 if tbt_s else 630)
    steps = carried_out(at, 7)
    assert [run for run, _, _ in steps[:2]] == [[*names, "b"]] * 2, "what it costs is tried twice"
    assert steps[2:4] == [chunk, alone]
    assert steps[5:] == [chunk, alone]


def test_nobody_pauses_for_prompts_that_could_not_start() -> None:
    at = dear([timed("x", 40.0), timed("y", 40.0)], free_blocks=0)
    at.wait(*prompts(500)).admissible(lambda job: False)
    assert all(run == ["x", "y"] for run, _, _ in carried_out(at, 8))


def test_turns_can_be_switched_off() -> None:
    at = dear([timed("x", 40.0), prefilling("b", prompt=500, computed=10)])
    at.batching = Paced(SharedKernel(), share=1.0, turns=False)
    assert all(run == ["x", "b"] for run, _, _ in carried_out(at, 8))


def test_answers_that_paused_may_be_gone_when_it_is_their_turn() -> None:
    at = dear([decoding(f"x{n}") for n in range(10)]).wait(*prompts(500, 500))
    assert carried_out(at, 3)[-1] == ([], ["p0", "p1"], 630)
    at.view.residents = []  # their clients have hung up
    assert carried_out(at, 1) == [([], ["p0", "p1"], 640)]


def test_steps_without_room_for_prompts_are_no_rounds() -> None:
    at = dear([decoding(f"x{n}") for n in range(10)]).wait(*prompts(500))
    at.admissible(lambda job: at.view.free_blocks > 0)
    paused = []
    for has_room in [True, False] * 9:
        at.view.free_blocks = 400 if has_room else 0
        paused.append(not carried_out(at, 1)[0][0])
    # The 1st, 2nd and 4th try what one step costs; steps of decodes alone lie between them anyway.
    assert [number for number, has_paused in enumerate(paused[::2], 1) if has_paused] == [3, 5, 6, 7, 9]


class Crowded(LinearCost):
    """Half a minute more for a step of more than ten."""

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of a step."""
        return LinearCost.step_s(self, shape) + (30.0 if shape.num_jobs > 10 else 0.0)


def test_where_drafts_may_take_the_whole_budget_nobody_takes_turns() -> None:
    residents = [*(decoding(f"x{n}") for n in range(10)), prefilling("b", prompt=500, computed=10)]
    at = dear(residents, max_tokens=16, tokens_a_decode=2)
    at.batching = Paced(Crowded(), share=1.0, short_steps=False)
    assert [(len(run), budget) for run, _, budget in carried_out(at, 4)] == [(11, 16)] * 4


def test_nobody_saves_up_for_a_trial() -> None:
    # 7 s are enough for 3 of decodes and 3.6 of prompts, and 2.8 of them leave nothing to save. One step takes 14.6.
    streams = [timed(f"x{n}", 7.0) for n in range(10)]
    at = dear([*streams, prefilling("b", prompt=500, computed=10)])
    at.batching = Paced(SharedKernel(), share=0.4)
    budgets = [budget for _, _, budget in carried_out(at, 9)]
    assert budgets == [10, 10, 16, 10, 10, 16, 10, 16, 10]


def test_nobody_pauses_while_the_engine_defers_prompts() -> None:
    # Of data-parallel engines each computes prompts in every other step.
    at = dear([*(decoding(f"x{n}") for n in range(10)), prefilling("b", prompt=500, computed=10)])
    paused = []
    for step in range(12):
        at.view.defers_prompts = step % 2 == 1
        paused.append(carried_out(at, 1)[0][0] == ["b"])
    assert [step for step, has_paused in enumerate(paused) if has_paused] == [4, 8, 10]


def test_newcomers_are_told_that_their_turn_is_next_but_not_while_decodes_save_up() -> None:
    at = dear([decoding(f"x{n}") for n in range(10)]).wait(*prompts(500, 500))
    carried_out(at, 3)
    assert (at.plan().admit, ids(at.plan().next_up)) == ((), ["p0", "p1"])
    saving = dear([timed(f"x{n}", 4.0) for n in range(10)]).wait(*prompts(500))
    assert (saving.plan().admit, saving.plan().next_up) == ((), ())


@SOME
@given(
    workload=workloads(),
    tbt_s=st.sampled_from([None, 3.0, 6.0, 12.0]),
    dearer_s=st.sampled_from([0.3, 1.0, 5.0]),
)
def test_turns_keep_what_every_policy_keeps(workload: Workload, tbt_s: float | None, dearer_s: float) -> None:
    timely = workload if tbt_s is None else hurried(workload, tbt_s)
    check_drains(lambda _: build_policy(find_preset("headway"), SharedKernel(dearer_s)), timely)
