"""Steps of decodes and prompts, by hand: what they have, and a second for each decode beside prompts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batch_shape import BatchShape
from headway.core.job import Job
from headway.policies.batching.mixed_step import MixedStep
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
    """Jobs with prompts of these lengths, none of them computed."""
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
    planned = MixedStep(Graphed(more_s), decode_shape(10, 100), prompts(4000), 512)
    assert planned.soonest(tokens) == soonest


def test_most_tokens_are_found_to_the_grain() -> None:
    # Ten decodes cost 2 s, 1 s for their tokens and 10 s beside prompts: 20.4 s leave 74 tokens, to the grain 64.
    planned = MixedStep(SharedKernel(), decode_shape(10, 100), prompts(50, 500))
    assert planned.most_tokens(20.4, 640) == 64
    assert (planned.decodes_s, planned.seconds(64)) == pytest.approx((3.0, 2 + 7.4 + 10))
    # Not even the least has time, and goes through all the same.
    assert planned.most_tokens(12.0, 640) == GRAIN_TOKENS


def test_where_there_is_time_for_all_it_is_as_many_as_are_allowed() -> None:
    whole = MixedStep(LinearCost(), decode_shape(1, 10), prompts(50))
    assert whole.most_tokens(60.0, 640) == 640
    assert whole.most_tokens(60.0, 0) == 0


def test_a_last_prompt_of_one_token_is_judged_as_the_decode_that_it_is() -> None:
    # 87 tokens are 14 s. The 88th is one of a prompt by itself, which the kernel takes for a decode: 15.1 s.
    planned = MixedStep(SharedKernel(), decode_shape(3, 30), prompts(50, 37, 1))
    assert planned.most_tokens(15.0, 300) == 87


@given(
    computed=st.integers(0, 40),
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=4),
    longest_s=st.floats(0.1, 60.0),
)
def test_a_step_of_the_most_tokens_is_not_too_long_and_one_of_a_grain_more_is(
    computed: int, lengths: list[int], longest_s: float
) -> None:
    begun = [prefilling("b", prompt=50, computed=computed), *prompts(*lengths)]
    planned = MixedStep(SharedKernel(), decode_shape(3, 30), begun)
    found = planned.most_tokens(longest_s, 300)
    if found != 300:
        assert planned.seconds(found) <= longest_s or found <= GRAIN_TOKENS
        assert planned.seconds(found + GRAIN_TOKENS) > longest_s
    else:
        assert planned.seconds(300) <= longest_s


def test_a_prompt_that_a_step_in_flight_computes_hides_nobody_behind_it() -> None:
    under_way, waits = prefilling("under way", prompt=30, computed=30), make_job("waits", prompt=500)
    planned = MixedStep(SharedKernel(), decode_shape(0, 0), [under_way, waits])
    # 2 s and a tenth for each token.
    assert planned.most_tokens(longest_s=12.0, at_most=400) == 96


class Attending(LinearCost):
    """Twenty seconds a step with prompts, a second for each token, a tenth for each pair that attention computes."""

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of a step."""
        read_s = 20.0 if shape.num_prefill_tokens else 0.0
        return read_s + shape.num_tokens + 0.1 * shape.prefill_pairs


def test_a_chunk_is_as_dear_as_the_chunks_of_a_prompt_are_in_the_mean() -> None:
    # 128 tokens have 8,256 pairs: 973.6 s, 7.6 each. The first 16 take 49.6 s, 3.1 each, but all eight chunks 1,113.6.
    decodes = decode_shape(1, 10)
    assert MixedStep(Attending(), decodes, prompts(128)).cheap_chunk(640) == 128
    # Without reading anything for a step with prompts, every grain is as cheap.
    assert MixedStep(LinearCost(), decodes, prompts(128)).cheap_chunk(640) == GRAIN_TOKENS
