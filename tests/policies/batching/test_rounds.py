"""What rounds take, by hand: a step of both costs what it has, and a second for each decode beside prompts."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batch_shape import BatchShape
from headway.core.cost import UnknownCost
from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.policies.batching.paced import Paced
from headway.policies.batching.rounds import Round, Rounds, SavedTime, Turn, Turns, times_as_long
from headway.policies.batching.step_shapes import GRAIN_TOKENS, decode_shape
from headway.policies.presets import build_policy, find_preset
from tests.policies.batching.scene import Scene, timed
from tests.policies.contract import Workload, check_drains, hurried, workloads
from tests.policies.instance import LinearCost
from tests.strategies import SOME, decoding, ids, make_job, prefilling


class SharedKernel(LinearCost):
    """Two seconds a step whatever is in it, a tenth for each token, and `dearer_s` for a decode beside prompts."""

    def __init__(self, dearer_s: float = 1.0) -> None:
        self.dearer_s = dearer_s

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of a step."""
        beside = shape.num_decodes if shape.num_prefill_tokens else 0
        return 2.0 + 0.1 * shape.num_tokens + self.dearer_s * beside


def prompts(*tokens: int) -> list[Job]:
    """So many tokens each, nothing of them computed."""
    return [make_job(f"p{number}", prompt=count) for number, count in enumerate(tokens)]


class Graphed(LinearCost):
    """Two seconds a step, a hundredth for each token, and `more_s` for one of more than 512."""

    def __init__(self, more_s: float) -> None:
        self.more_s = more_s

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of a step."""
        return 2.0 + 0.01 * shape.num_tokens + (self.more_s if shape.num_tokens > 512 else 0.0)


@pytest.mark.parametrize(
    ("more_s", "tokens", "soonest"),
    [
        # Beside ten decodes 502 take 7.12 s, 70.5 a second. 700 take 12.1, 57.9 a second; 4,000 take 45.1, 88.7.
        (3.0, 700, 502),
        (3.0, 4000, 4000),
        # 700 in 9.1 s are 76.9 a second.
        (0.0, 700, 700),
        # There are 4,000 in all: more are no sooner.
        (60.0, 8000, 502),
        (3.0, 8000, 8000),
        (3.0, 400, 400),
    ],
)
def test_as_many_as_cuda_graphs_hold_if_prompts_get_through_sooner_so(
    more_s: float, tokens: int, soonest: int
) -> None:
    planned = Round(Rounds(Graphed(more_s), graphed_tokens=512), decode_shape(10, 100), prompts(4000))
    assert planned.soonest(tokens) == soonest


def test_apart_cuda_graphs_hold_as_many_prompts_as_if_nobody_decoded() -> None:
    # 512 take 7.12 s and their decodes 2.1, 55.5 a second; 700 take 13.1 and 2.1, 46.1 a second.
    rounds = Rounds(Graphed(4.1), apart=True, graphed_tokens=512)
    assert Round(rounds, decode_shape(10, 100), prompts(4000)).soonest(700) == 512


@pytest.mark.parametrize(("dearer_s", "times"), [(0.0, 4.6 / 6.6), (0.2, 1.0), (1.0, 14.6 / 6.6)])
def test_one_step_beside_two(dearer_s: float, times: float) -> None:
    # Ten decodes and 16 tokens: 4.6 s in one step, and a second (or 0.2) for each decode; 3 and 3.6 s in two.
    found = times_as_long(SharedKernel(dearer_s), decode_shape(10, 100), prompts(500))
    assert found == pytest.approx(times)


def test_without_decodes_prompts_or_predictions_it_is_no_question() -> None:
    assert times_as_long(SharedKernel(), BatchShape(), prompts(500)) == 0
    assert times_as_long(SharedKernel(), decode_shape(10, 100), []) == 0
    assert times_as_long(UnknownCost(), decode_shape(10, 100), prompts(500)) == 0


def test_most_tokens_of_a_round_are_found_to_the_grain() -> None:
    # 12 s in two steps: 3 for the decodes, so 7 of prompts beyond the 2 of their step: 70 tokens, to the grain 64.
    apart = Round(Rounds(SharedKernel(), apart=True), decode_shape(10, 100), prompts(50, 500))
    assert apart.most_tokens(12.0, 640) == 64
    assert (apart.decodes_s, apart.prompts_s(64), apart.seconds(64)) == pytest.approx((3.0, 8.4, 11.4))
    # In one step the decodes cost 10 s more: not even the least has time, and goes through all the same.
    together = Round(Rounds(SharedKernel()), decode_shape(10, 100), prompts(50, 500))
    assert together.most_tokens(12.0, 640) == GRAIN_TOKENS
    assert together.seconds(64) == pytest.approx(2 + 7.4 + 10)


def test_where_there_is_time_for_all_it_is_as_many_as_are_allowed() -> None:
    whole = Round(Rounds(LinearCost()), decode_shape(1, 10), prompts(50))
    assert whole.most_tokens(60.0, 640) == 640
    assert whole.most_tokens(60.0, 0) == 0


def test_a_last_prompt_of_one_token_is_judged_as_the_decode_that_it_is() -> None:
    # 87 tokens are 14 s. The 88th is one of a prompt by itself, which the kernel takes for a decode: 15.1 s.
    planned = Round(Rounds(SharedKernel()), decode_shape(3, 30), prompts(50, 37, 1))
    assert planned.most_tokens(15.0, 300) == 87


@given(
    computed=st.integers(0, 40),
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=4),
    longest_s=st.floats(0.1, 60.0),
    apart=st.booleans(),
)
def test_a_round_of_the_most_tokens_is_not_too_long_and_one_of_a_grain_more_is(
    computed: int, lengths: list[int], longest_s: float, apart: bool
) -> None:
    begun = [prefilling("b", prompt=50, computed=computed), *prompts(*lengths)]
    planned = Round(Rounds(SharedKernel(), apart=apart), decode_shape(3, 30), begun)
    found = planned.most_tokens(longest_s, 300)
    if found != 300:
        assert planned.seconds(found) <= longest_s or found <= GRAIN_TOKENS
        assert planned.seconds(found + GRAIN_TOKENS) > longest_s
    else:
        assert planned.seconds(300) <= longest_s


def test_a_prompt_that_a_step_in_flight_computes_hides_nobody_behind_it() -> None:
    under_way, waits = prefilling("under way", prompt=30, computed=30), make_job("waits", prompt=500)
    planned = Round(Rounds(SharedKernel()), decode_shape(0, 0), [under_way, waits])
    # 2 s and a tenth for each token.
    assert planned.most_tokens(longest_s=12.0, at_most=400) == 96


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


def saved(*steps_s: float, longest_s: float = 4.0) -> SavedTime:
    """After steps of decodes that took so long."""
    found = SavedTime()
    for step_s in steps_s:
        found.expect(step_s, longest_s)
        found.observe(ran=True, prompts=True)
    return found


def planned(num_decodes: int = 2) -> Round:
    """2.2 s for two decodes alone; with n tokens of a prompt 4.2 s and n tenths."""
    return Round(Rounds(SharedKernel()), decode_shape(num_decodes, 20), prompts(500))


def test_what_steps_leave_pays_for_more_prompts_less_often() -> None:
    # Three times 4 s are 78 tokens, to the grain 64: 10.6 s. That is 6.6 more than 4, of which decodes leave 1.8 each.
    assert saved(2.2, 2.2, 2.2).afford(planned(), 0, 500, 4.0) == 0
    assert saved(2.2, 2.2, 2.2, 2.2).afford(planned(), 0, 500, 4.0) == 64
    assert saved(2.2, 2.2, 2.2, 2.2, 10.6).afford(planned(), 0, 500, 4.0) == 0


def test_no_more_than_two_steps_are_saved() -> None:
    many = saved(*[1.0] * 99)
    many.expect(10.6, 4.0)
    many.observe(ran=True, prompts=True)
    # 8 s were, of which 6.6 went.
    assert many.afford(planned(), 0, 500, 4.0) == 0
    assert saved(*[1.0] * 99).afford(planned(), 0, 500, 4.0) == 64


def test_a_step_of_prompts_alone_is_paid_whole() -> None:
    found = saved(2.2, 2.2, 2.2, 2.2)
    found.expect(7.0, 4.0, decodes=False)
    found.observe(ran=True, prompts=True)
    assert found.afford(planned(), 0, 500, 4.0) == 0


def test_more_less_often_only_where_prompts_get_through_sooner() -> None:
    # 6 s allow 16 tokens in every step: 5.8 s, 2.8 tokens a second. In 18 s there are 138, to the grain 128: they
    # take 17, and 6.4 of decodes alone to save up for them: 5.5 a second.
    assert saved(*[1.0] * 99, longest_s=6.0).afford(planned(), 16, 500, 6.0) == 128
    # Where a decode costs no more beside prompts one way is as good as the other, but for the 2 s of each step.
    cheap = Round(Rounds(SharedKernel(0.0)), decode_shape(2, 20), prompts(500))
    assert saved(*[1.0] * 99, longest_s=30.0).afford(cheap, 272, 500, 30.0) == 272


def test_all_that_is_wanted_comes_at_once_if_it_is_saved_and_cutting_it_is_dearer() -> None:
    # 30 s allow 256 tokens. All 500 take 54.2 s; cut 29.8 and 28.6, less the 2.2 that a second step of the decodes
    # takes: 56.2. Saving up for them anew each time would be no use: 500 in 56.1 s are 8.9 a second, 256 in 29.8 8.6.
    saved_up = saved(*[1.0] * 99, longest_s=30.0)
    assert saved_up.afford(planned(), 256, 500, 30.0) == 500
    assert saved(longest_s=30.0).afford(planned(), 256, 500, 30.0) == 256
    # Of 2,000 tokens 864 would be paid for, and somebody would still wait.
    long = Round(Rounds(SharedKernel()), decode_shape(2, 20), prompts(2000))
    assert saved_up.afford(long, 256, 2000, 30.0) == 256


def test_nobody_saves_up_for_long_while_prompts_could_come_in_grains() -> None:
    # 32 tokens take 7.4 s, 4.7 more than 2.7, of which decodes leave half a second: ten steps. Or they take 4.9 more
    # than 2.5, and there are 0.3 each: seventeen, and that would still be 0.7 tokens a second in place of 0.5.
    assert saved(*[1.0] * 99, longest_s=2.7).afford(planned(), 2, 500, 2.7) == 32
    assert saved(*[1.0] * 99, longest_s=2.5).afford(planned(), 2, 500, 2.5) == 2
    # Where not even a grain fits there is no other way.
    assert saved(*[1.0] * 99, longest_s=2.5).afford(planned(), 0, 500, 2.5) == 32


def test_no_more_than_is_needed() -> None:
    assert saved(*[1.0] * 99, longest_s=6.0).afford(planned(), 16, 48, 6.0) == 48


def test_where_decodes_leave_nothing_nothing_is_saved_for() -> None:
    # Forty decodes take 6 s.
    assert saved(*[6.0] * 99, longest_s=6.0).afford(planned(40), 16, 500, 6.0) == 16
    assert saved(*[6.0] * 99, longest_s=6.0).afford(planned(40), 0, 500, 6.0) == 0


def test_a_step_of_prompts_is_paid_by_the_decodes_after_it_where_nothing_was_saved() -> None:
    # Rounds of 1.8 s of prompts and 2.2 of decodes take all of 4 s: nothing is left, however many there are.
    found = SavedTime()
    for _ in range(9):
        found.expect(1.8, 4.0, decodes=False)
        found.observe(ran=True, prompts=True)
        found.expect(2.2, 4.0)
        found.observe(ran=True, prompts=True)
    # Two decodes and 16 tokens in one step take 5.8 s: 1.8 more than a token may, and just what decodes leave of it.
    assert found.afford(planned(), 0, 16, 4.0) == 0


@pytest.mark.parametrize("longest_s", [inf, 4.0])
def test_without_a_target_nothing_is_kept(longest_s: float) -> None:
    found = saved(*[1.0] * 99)
    found.expect(1.0, longest_s)
    found.observe(ran=True, prompts=True)
    assert (found.afford(planned(), 0, 500, 4.0) == 0) is (longest_s == inf)


def test_a_step_whose_prompts_did_not_get_through_costs_what_its_decodes_took() -> None:
    def after(*, prompts: bool) -> SavedTime:
        found = saved(2.2, 2.2, 2.2)
        found.expect(10.6, 4.0, alone_s=2.2)
        found.observe(ran=True, prompts=prompts)
        return found

    assert after(prompts=False).afford(planned(), 0, 500, 4.0) == 64
    assert after(prompts=True).afford(planned(), 0, 500, 4.0) == 0


def test_an_empty_step_is_no_step() -> None:
    found = saved(2.2, 2.2, 2.2, 2.2)
    found.expect(10.6, 4.0)
    found.observe(ran=False, prompts=False)
    assert found.afford(planned(), 0, 500, 4.0) == 64
