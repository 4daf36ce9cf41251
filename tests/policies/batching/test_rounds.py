"""What rounds take, by hand: a step of both costs what it has, and a second for each decode beside prompts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batch_shape import BatchShape
from headway.core.cost import UnknownCost
from headway.core.job import Job
from headway.policies.batching.rounds import Round, Rounds, times_as_long
from headway.policies.batching.step_shapes import GRAIN_TOKENS, decode_shape
from tests.policies.instance import LinearCost
from tests.strategies import make_job, prefilling


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
