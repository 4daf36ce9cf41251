"""How few prompt tokens are worth a step, by hand: 2 s whatever is in it and a hundredth of a second a token."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job
from headway.core.plan import StepPlan
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.batching.paced import Paced
from headway.policies.batching.rounds import Rounds
from headway.policies.batching.short_steps import ShortSteps
from headway.policies.batching.step_work import step_work
from headway.policies.order.on_time import OnTime
from tests.policies.batching.scene import Scene
from tests.policies.instance import LinearCost
from tests.strategies import decoding, make_job, prefilling


class WithOverhead(LinearCost):
    """`overhead_s` for every step, and a hundredth of a second for every token."""

    def __init__(self, overhead_s: float = 2.0) -> None:
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
    most_dearer: float = 0.2,
    token_budget: int = 8192,
    free_blocks: int = 4000,
    num_waiting: int = 0,
    graphed_tokens: int = 512,
) -> int:
    """Of a step of these, with 8,192 tokens and ample memory unless told otherwise, while so many more wait."""
    waiting = [*admit, *(make_job(f"waits {number}") for number in range(num_waiting))]
    view = StepView(
        max_run=256, max_resident=256, total_blocks=8000, free_blocks=free_blocks, waiting=waiting
    )
    plan = StepPlan(run=list(run), admit=list(admit), token_budget=token_budget)
    rounds = Rounds(cost or WithOverhead(), graphed_tokens=graphed_tokens)
    return ShortSteps(most_dearer).most_tokens(step_work(view, plan), rounds)


def test_a_token_may_cost_a_tenth_more_than_in_longer_steps_where_one_of_two_gains() -> None:
    # A prompt of 8,000 costs 82 s. Of three quarters each time: 6,000 tokens would be 82.67 s for all, 4,500 83.56,
    # 3,375 84.74, 2,531 86.32, 1,898 88.43 and 1,424 91.24, which is 1.113 of the least.
    assert most_tokens(prefilling("a", prompt=4000), admit=(make_job("b", prompt=4000),)) == 1898


@pytest.mark.parametrize(
    ("more_s", "tokens"),
    [
        # The same, and no more costs at once.
        (0.0, 1898),
        # 8,000 tokens 94 s, 6,000 98.67 for all, 4,500 104.9, more than a tenth above 94. 512 would be 111.25, more
        # than a tenth above those 98.67.
        (12.0, 6000),
        # 98, 104 and 112 s: 6,000. 512 tokens 111.25, within a tenth of 104; 384 would be 121.7.
        (16.0, 512),
    ],
)
def test_what_cuda_graphs_hold_is_tried_below_where_steps_become_too_dear(more_s: float, tokens: int) -> None:
    both = (prefilling("a", prompt=4000),)
    assert most_tokens(*both, admit=(make_job("b", prompt=4000),), cost=WithGraphs(more_s)) == tokens


def test_where_graphs_hold_nothing_they_are_not_tried() -> None:
    both = (prefilling("a", prompt=4000),)
    dear = WithGraphs(16.0)
    assert most_tokens(*both, admit=(make_job("b", prompt=4000),), cost=dear, graphed_tokens=0) == 6000


@pytest.mark.parametrize(("most_dearer", "tokens"), [(0.1, 3375), (0.4, 1067), (0.0, 8192)])
def test_how_much_more_can_be_set_and_nothing_more_is_as_long_as_they_come(
    most_dearer: float, tokens: int
) -> None:
    both = (prefilling("a", prompt=4000),)
    assert most_tokens(*both, admit=(make_job("b", prompt=4000),), most_dearer=most_dearer) == tokens


@pytest.mark.parametrize(
    ("num_decodes", "num_waiting", "tokens"),
    [
        # In f steps 8,000 tokens and their part of a decode cost 80.01 + 2 f s, and add 80 to the decode. A prompt that
        # is alone gains nothing: 2 times the one and the other is 240.02 + 4 f.
        (1, 0, 8192),
        # Of two, who with all that come meanwhile are 2 x 3, one gains: it may be a tenth more than 560.06 + 12 f at
        # f = 1. It is 1.097 times that at f = 5.62.
        (1, 1, 1 + 1423),
        # Of ten nine, for a tenth and four fifths more: 8881.1 + 220 f is 1.157 times as much at 7.49, 1.217 at 9.99.
        (1, 9, 1 + 1067),
        # What 100 decodes pay is the same in however many steps: 8,486 + 12 f is 1.078 times as much at 56.1.
        (100, 1, 100 + 142),
        # They hardly count where as many wait: 100 x 101 times 81 + 2 f, and 8,000.
        (100, 99, 100 + 1067),
    ],
)
def test_what_shorter_steps_cost_is_paid_by_those_who_decode_and_those_who_wait(
    num_decodes: int, num_waiting: int, tokens: int
) -> None:
    decodes = [decoding(f"{n}", limit=500) for n in range(num_decodes)]
    assert most_tokens(*decodes, prefilling("a", prompt=8000), num_waiting=num_waiting) == tokens


def test_the_least_of_all_longer_steps_counts() -> None:
    class Tiles(LinearCost):
        """Steps of 4,500 tokens and more are a tenth dearer, as where a kernel changes."""

        def step_s(self, shape: BatchShape) -> float:
            return (0.011 if shape.num_tokens >= 4500 else 0.01) * shape.num_tokens + 2.0

    # 3,375 tokens cost 84.74 s for all, the least of all; 2,531 86.32, 1,898 88.43, 1,423 91.24 and 1,067 94.99.
    assert (
        most_tokens(prefilling("a", prompt=4000), admit=(make_job("b", prompt=4000),), cost=Tiles()) == 1423
    )


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
            return 2.0 + 0.01 * shape.num_tokens + slower_s

    # 8,000 tokens add 180 s to what the decode takes anyway; 6,000 would add 160, which for all is 213 s. Whole steps
    # are 182 and, for all, 216 s.
    beside = (decoding("x", limit=500), prefilling("a", prompt=8000))
    assert most_tokens(*beside, cost=OneKernel(), num_waiting=1) == 8192
    assert most_tokens(*beside, num_waiting=1) < 8192


def test_newcomers_that_find_no_room_do_not_count() -> None:
    # A block of memory is free: the prompt that has begun is alone with what it lacks, and beside a decode it is not.
    kept_out = (make_job("b", prompt=4000),)
    assert most_tokens(prefilling("a", prompt=4000), admit=kept_out, free_blocks=1) == 8192
    # In f steps 6 x (40.01 + 2 f) + 40: of 3.16 1.09 times what it is of 1, of 4.21 1.13.
    beside = (decoding("x", limit=500), prefilling("a", prompt=4000))
    assert most_tokens(*beside, admit=kept_out, free_blocks=1) == 1 + 1265


def test_nothing_is_shortened_while_step_times_are_unknown() -> None:
    assert most_tokens(decoding("x"), prefilling("a", prompt=4000), cost=UnknownCost()) == 8192


@given(
    overhead_s=st.floats(0, 50),
    most_dearer=st.floats(0, 0.9),
    num_decodes=st.integers(0, 40),
    prompt=st.integers(1, 20_000),
    token_budget=st.integers(41, 8192),
    num_waiting=st.integers(0, 20),
)
def test_shorter_steps_cost_no_more_than_so_much_more(
    overhead_s: float, most_dearer: float, num_decodes: int, prompt: int, token_budget: int, num_waiting: int
) -> None:
    jobs = [decoding(f"{n}", limit=500) for n in range(num_decodes)]
    tokens = most_tokens(
        *jobs,
        prefilling("a", prompt=prompt),
        cost=WithOverhead(overhead_s),
        most_dearer=most_dearer,
        token_budget=token_budget,
        num_waiting=num_waiting,
    )
    assert num_decodes < tokens <= token_budget
    if tokens < token_budget:
        short, many = tokens - num_decodes, min(prompt, token_budget - num_decodes)

        def all_cost(steps: float) -> float:
            whole_s = steps * overhead_s + 0.01 * (many + num_decodes)
            return (1 + num_waiting) * (2 + num_waiting) * whole_s + num_decodes * 0.01 * many

        dearest = 1 + most_dearer * num_waiting / (1 + num_waiting)
        # A token's rounding of prompts, and of decodes, besides.
        assert all_cost(many / short) <= dearest * all_cost(1) * (1 + 2 / short)


@pytest.mark.parametrize("most_dearer", [-0.1, 1.0, float("nan")])
def test_shares_that_are_none_are_refused(most_dearer: float) -> None:
    with pytest.raises(ConfigError, match=r"most_dearer is .*; accepted: 0"):
        ShortSteps(most_dearer)


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
    assert scene(most_dearer=0.0).plan().token_budget == 8192
    # A fortieth, with two prompts: 2 x 3 times 80.65 + 2 f, and 80.64; of 1.78 1.016 times what it is of 1, of 2.37
    # 1.029.
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
    # mean of what its tokens attend to, is read for a quarter of a cut: (30 + 1.8 + 0.55) / 0.75 = 43.13, and of 2,250
    # 44.12 s, 1.041 of the least. 1,687 are 45.44, 1.072.
    beside = decoding("x", limit=500)
    later = prefilling("a", prompt=24_000, computed=20_000)
    assert most_tokens(beside, later, cost=Reading(), most_dearer=0.1, num_waiting=1) == 1 + 2250
    # At the beginning of a prompt there is nothing to read.
    at_first = prefilling("a", prompt=4000)
    assert most_tokens(beside, at_first, cost=Reading(), most_dearer=0.1, num_waiting=1) < 1000


def test_what_the_cache_holds_of_a_newcomer_is_read_and_not_computed() -> None:
    beside, found = decoding("x", limit=500), make_job("a", prompt=24_000, num_cached_tokens=20_000)
    tokens = most_tokens(beside, admit=(found,), cost=Reading(), most_dearer=0.1, num_waiting=1)
    assert tokens == 1 + 2250


def test_a_part_of_a_prompt_is_a_job() -> None:
    class ByJob(LinearCost):
        """A second, shared by the prompts of the step: one of none would be an error."""

        def step_s(self, shape: BatchShape) -> float:
            return 1.0 / (shape.num_jobs - shape.num_decodes) if shape.num_prefill_tokens else 0.0

    assert most_tokens(decoding("x", limit=500), prefilling("a", prompt=8000), cost=ByJob()) == 8192
