"""The smallest worthwhile number of prompt tokens in a step, by hand: 1 s for any step and a hundredth of a second
a token.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job
from headway.core.plan import StepPlan
from headway.core.slo import NO_TARGETS, Slo
from headway.core.view import StepView
from headway.policies.batching.paced import Paced
from headway.policies.batching.step_length import tokens_for_first_tokens, tokens_worth_a_step
from headway.policies.order.on_time import OnTime
from tests.policies.batching.scene import Scene, mixed_step
from tests.policies.instance import LinearCost
from tests.strategies import decoding, make_job, prefilling


class WithOverhead(LinearCost):
    """`overhead_s` for every step, and a hundredth of a second for every token."""

    def __init__(self, overhead_s: float = 1.0) -> None:
        self.overhead_s = overhead_s

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of a step."""
        return self.overhead_s + 0.01 * shape.num_tokens


class WithGraphs(WithOverhead):
    """The same, and `more_s` for a step of more than 512 tokens."""

    def __init__(self, more_s: float) -> None:
        super().__init__()
        self.more_s = more_s

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of a step."""
        return super().step_s(shape) + (self.more_s if shape.num_tokens > 512 else 0.0)


def most_tokens(
    *run: Job,
    admit: tuple[Job, ...] = (),
    cost: CostModel | None = None,
    token_budget: int = 8192,
    free_blocks: int = 4000,
    num_waiting: int = 0,
    graphed_tokens: int = 512,
) -> int:
    """The most tokens of a step with these settings, by default with 8,192 tokens and ample memory, while this many
    more jobs wait.
    """
    waiting = [*admit, *(make_job(f"waits {number}") for number in range(num_waiting))]
    view = StepView(
        max_run=256, max_resident=256, total_blocks=8000, free_blocks=free_blocks, waiting=waiting
    )
    plan = StepPlan(run=list(run), admit=list(admit), token_budget=token_budget)
    step = mixed_step(view, plan, cost or WithOverhead(), graphed_tokens)
    num_behind = sum(job.prefilling for job in run) + len(waiting)
    return tokens_worth_a_step(step, token_budget, num_behind)


@pytest.mark.parametrize(
    ("num_decodes", "num_waiting", "tokens"),
    [
        # With a share s of 8,000 tokens a step takes 2 + 80.01 s, and all of them 2 / s + 80.01; they add 80 to a
        # decode either way. A prompt that is alone, which counts eight times, wants one step.
        (1, 0, 8192),
        # Two, and half of a decode: 16 / s + 40 s and what is the same for all s is 51.3 at 0.75, 50.9 at 0.5625, 54.8
        # at 0.422. Ten, and nine tenths of it: 80 / s + 72 s is least at 1.
        (1, 1, 1 + 4500),
        (1, 9, 8192),
        # A hundred that decode: 16 / s + 4050 s is 512 at 0.0563, 450 tokens. But 512 in all, which CUDA graphs hold,
        # are in the long run 0.0632 of both: 509.
        (100, 1, 512),
        # 800 / s + 8019 s is 5,088 at 0.422, 5,066 at 0.316, 5,274 at 0.237.
        (100, 99, 100 + 2531),
    ],
)
def test_what_a_step_costs_is_paid_by_those_who_decode_and_those_who_wait(
    num_decodes: int, num_waiting: int, tokens: int
) -> None:
    decodes = [decoding(f"{n}", limit=500) for n in range(num_decodes)]
    assert most_tokens(*decodes, prefilling("a", prompt=8000), num_waiting=num_waiting) == tokens


BESIDE = (decoding("x", limit=500), prefilling("a", prompt=8000))


@pytest.mark.parametrize(
    ("more_s", "tokens"),
    [
        # The same, and no more costs at once.
        (0.0, 1 + 4500),
        # 6 s more for each step: 112 / s + 40 s is least at 1. With what is the same for all s it is 1,522 s; with 512
        # tokens, in the long run 0.064 of both, it is 1,530 for those who wait, 80 and 3 for the decode, 1,613.
        (6.0, 8192),
        # 1,627 s.
        (12.0, 512),
    ],
)
def test_what_cuda_graphs_hold_is_tried_below_where_steps_become_too_dear(more_s: float, tokens: int) -> None:
    assert most_tokens(*BESIDE, cost=WithGraphs(more_s), num_waiting=1) == tokens


def test_where_graphs_hold_nothing_they_are_not_tried() -> None:
    assert most_tokens(*BESIDE, cost=WithGraphs(12.0), num_waiting=1, graphed_tokens=0) == 8192


@pytest.mark.parametrize(
    ("run", "admit"),
    [
        ((prefilling("a", prompt=4000),), ()),
        ((), (make_job("a", prompt=4000),)),
        ((decoding("x"), decoding("y")), ()),
        ((decoding("x"), prefilling("a", prompt=12)), ()),
        ((), ()),
    ],
    ids=["one prompt", "one newcomer", "decodes", "a few tokens", "nobody"],
)
def test_steps_are_as_long_as_they_come_where_shorter_ones_serve_nobody(
    run: tuple[Job, ...], admit: tuple[Job, ...]
) -> None:
    assert most_tokens(*run, admit=admit) == 8192


def test_decodes_that_are_slower_beside_prompts_want_few_steps_with_some() -> None:
    class OneKernel(LinearCost):
        """100 s more for decodes beside prompts."""

        def step_s(self, shape: BatchShape) -> float:
            slower_s = 100.0 if shape.num_decodes and shape.num_prefill_tokens else 0.0
            return 1.0 + 0.01 * shape.num_tokens + slower_s

    # Two who wait and one who decodes: 1,616 / s + 40 s, and without it 16 / s + 40 s, which is least at 0.5625.
    assert most_tokens(*BESIDE, cost=OneKernel(), num_waiting=1) == 8192
    assert most_tokens(*BESIDE, num_waiting=1) == 1 + 4500


def test_newcomers_that_find_no_room_do_not_count() -> None:
    # A block of memory is free: the prompt that has begun is alone with what it lacks, and beside a decode it is not.
    kept_out = (make_job("b", prompt=4000),)
    assert most_tokens(prefilling("a", prompt=4000), admit=kept_out, free_blocks=1) == 8192
    # It waits for prompts all the same: beside ten decodes 16 / s + 200.5 s is 122.5 at 0.422, 114 at 0.316, 115 at
    # 0.237.
    beside = [decoding(f"{n}", limit=500) for n in range(10)]
    begun = prefilling("a", prompt=4000)
    assert most_tokens(*beside, begun, admit=kept_out, free_blocks=1) == 10 + 1265


def test_nothing_is_shortened_while_step_times_are_unknown() -> None:
    assert most_tokens(decoding("x"), prefilling("a", prompt=4000), cost=UnknownCost()) == 8192


@given(
    overhead_s=st.floats(0, 50),
    num_decodes=st.integers(0, 40),
    prompt=st.integers(1, 20_000),
    token_budget=st.integers(41, 8192),
    num_waiting=st.integers(0, 20),
)
def test_neither_a_longer_step_nor_one_a_quarter_shorter_holds_all_up_less(
    overhead_s: float, num_decodes: int, prompt: int, token_budget: int, num_waiting: int
) -> None:
    jobs = [decoding(f"{n}", limit=500) for n in range(num_decodes)]
    tokens = most_tokens(
        *jobs,
        prefilling("a", prompt=prompt),
        cost=WithOverhead(overhead_s),
        token_budget=token_budget,
        num_waiting=num_waiting,
        graphed_tokens=0,
    )
    assert num_decodes < tokens <= token_budget
    if tokens < token_budget:
        short, many = tokens - num_decodes, min(prompt, token_budget - num_decodes)

        def held_up_s(prompt_tokens: float) -> float:
            share = prompt_tokens / many
            step_s = overhead_s + 0.01 * (many + num_decodes) * share
            beginning = num_decodes * num_waiting / (1 + num_waiting)
            return 8 * (1 + num_waiting) * step_s / share + num_decodes * 0.01 * many + beginning * step_s

        # A token's rounding of prompts, and of decodes, besides.
        rounding = 1 + 2 / short
        assert held_up_s(short) <= held_up_s(min(many, short / 0.75)) * rounding
        assert held_up_s(short) <= held_up_s(many) * rounding
        if short * 0.75 >= 16:
            assert held_up_s(short) <= held_up_s(short * 0.75) * rounding


def scene(**settings: Any) -> Scene:
    """A long prompt that has begun beside a decode, and a short one that came later."""
    at = Scene(
        Paced(WithOverhead(), **settings),
        residents=[decoding("x", limit=500), prefilling("long", prompt=8000)],
        max_tokens=8192,
        free_blocks=4000,
        total_blocks=8000,
    )
    return at.wait(make_job("short", prompt=64))


def test_paced_steps_are_no_longer_than_worth_it() -> None:
    assert scene(short_steps=False).plan().token_budget == 8192
    # Two prompts, of 8,064 tokens: 16 / s + 40.3 s, which is least at 0.5625 of the shares that are tried.
    assert scene().plan().token_budget == 1 + 4536


def test_times_that_are_not_to_be_trusted_shorten_nothing() -> None:
    at, order = scene(), OnTime(WithOverhead())
    for _ in range(99):
        order.steps.observe(1.0, 3.0)
    for job in at.view.residents:
        order.add(job)
        order.remove(job)
    for job in at.view.waiting:
        order.add(job)
    at.order = order  # type: ignore[assignment]
    assert at.plan().token_budget == 8192


class Reading(LinearCost):
    """A hundredth of a second a token, and a ten-thousandth for each that a prompt's chunk reads."""

    def step_s(self, shape: BatchShape) -> float:
        return 0.01 * shape.num_tokens + 1e-4 * shape.prefill_context_tokens


def test_a_prompt_that_is_cut_reads_what_came_before_once_more() -> None:
    # A chunk of 4,000 after 20,000 reads 24,000 tokens: 42.4 s. In steps of three quarters half as much again, the
    # mean of what its tokens attend to, is read for a quarter of a cut: (30 + 1.8 + 0.55) / 0.75 = 43.13; of 2,250 it
    # is 44.12 s, of 1,687 45.44. Two who wait count sixteen times, ten decodes once, and half of them for what a step
    # takes: 1,314 s, 1,283, 1,271 and 1,277.
    beside = [decoding(f"{n}", limit=500) for n in range(10)]
    later = prefilling("a", prompt=24_000, computed=20_000)
    assert most_tokens(*beside, later, cost=Reading(), num_waiting=1) == 10 + 2250
    # At the beginning of a prompt there is nothing to read.
    at_first = prefilling("a", prompt=4000)
    assert most_tokens(*beside, at_first, cost=Reading(), num_waiting=1) < 1000


def test_what_the_cache_holds_of_a_newcomer_is_read_and_not_computed() -> None:
    beside = [decoding(f"{n}", limit=500) for n in range(10)]
    found = make_job("a", prompt=24_000, num_cached_tokens=20_000)
    assert most_tokens(*beside, admit=(found,), cost=Reading(), num_waiting=1) == 10 + 2250


def test_a_part_of_a_prompt_is_a_job() -> None:
    class ByJob(LinearCost):
        """A second, shared by the prompts of the step: one of none would be an error."""

        def step_s(self, shape: BatchShape) -> float:
            return 1.0 / (shape.num_jobs - shape.num_decodes) if shape.num_prefill_tokens else 0.0

    assert most_tokens(decoding("x", limit=500), prefilling("a", prompt=8000), cost=ByJob()) == 8192


def tokens(*prompts: Job, run: tuple[Job, ...] = (), least: int = 500, budget: int = 8192) -> int:
    """Of a step that starts these beside those that run, with at least so many tokens."""
    order = OnTime()
    for job in prompts:
        order.add(job)
    view = StepView(
        now_s=0.0, max_run=256, max_resident=256, total_blocks=8000, free_blocks=4000, waiting=list(prompts)
    )
    plan = StepPlan(run=list(run), admit=list(prompts), token_budget=budget)
    return tokens_for_first_tokens(
        mixed_step(view, plan, WithOverhead(2.0)), order, view.now_s, budget, least
    )


def prompt(id_: str, due_s: float) -> Job:
    """A prompt of 4,000 tokens, with its first token due in this many seconds."""
    return make_job(id_, prompt=4000, slo=Slo(ttft_s=due_s))


def test_prompts_in_time_get_through_in_a_third_of_their_time() -> None:
    # 8,000 tokens in 300 s are 0.0375 s each, a third of which is 0.0125 s. A token of 500 takes 0.014, of 667 0.013
    # and of 890 0.01225 s.
    assert tokens(prompt("a", 300.0), prompt("b", 300.0)) == 890
    assert tokens(prompt("a", 300.0), prompt("b", 300.0), least=900) == 900
    # The first alone in 120 s: a third of 0.03 s is what the longest step, of 8,000, does not reach.
    assert tokens(prompt("a", 120.0), prompt("b", 300.0)) == 8000


def test_decodes_take_their_part_of_each_step() -> None:
    # A hundred decodes are a second more: of 667 (3 + 6.67) / 667 is 0.0145 s, of 890 0.0134, of 1,187 0.01253 s and of
    # 1,583 0.0119 s.
    run = tuple(decoding(f"{n}") for n in range(100))
    assert tokens(prompt("a", 300.0), prompt("b", 300.0), run=run, least=600) == 100 + 1583


def test_one_that_the_longest_steps_could_not_save_asks_for_nothing() -> None:
    # 4,000 tokens take 41 s in steps of 8,000. Without it 4,000 in 300 s are 0.025 s each, a third of them.
    assert tokens(prompt("a", 300.0), prompt("lost", 30.0)) == 500


@pytest.mark.parametrize("slo", [NO_TARGETS, Slo(deadline_s=300.0), Slo(ttft_s=0.5)])
def test_one_without_a_first_token_to_come_in_time_asks_for_nothing(slo: Slo) -> None:
    assert tokens(make_job("a", prompt=4000, slo=slo, arrival_s=-1.0)) == 500


def test_paced_has_such_steps() -> None:
    # Beside a decode 8,000 tokens of two prompts are worth a step of 4,500: 16 / s + 40 s is least at 0.5625.
    def budget(slo: Slo) -> int:
        begun, order = prefilling("begun", prompt=4000), OnTime()
        order.add(begun)
        order.remove(begun)
        scene = Scene(
            Paced(WithOverhead()),
            residents=[decoding("x", limit=500), begun],
            max_tokens=8192,
            free_blocks=4000,
            total_blocks=8000,
            block_size=16,
        )
        scene.order = order  # type: ignore[assignment]
        return scene.wait(make_job("a", prompt=4000, slo=slo)).plan().token_budget

    assert budget(NO_TARGETS) == budget(Slo(ttft_s=900.0)) == 1 + 4500
    assert budget(Slo(ttft_s=100.0)) == 8001


@pytest.mark.parametrize("budget", [10, 8])
def test_where_decodes_take_all_tokens_first_tokens_ask_for_nothing(budget: int) -> None:
    run = tuple(decoding(f"{n}") for n in range(10))
    assert tokens(prompt("a", 300.0), run=run, least=10, budget=budget) == 10


def test_one_whose_first_token_is_under_way_asks_for_nothing() -> None:
    under_way = make_job("under way", prompt=4000, num_computed_tokens=4000, slo=Slo(ttft_s=60.0))
    assert tokens(under_way, prompt("b", 300.0)) == tokens(prompt("b", 300.0))
