from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.engine.profiling.grid import KV_SHARE, Scene, context_lengths, prompts_of, scenes, warm_up
from headway.engine.stepped_engine import ReportedSizes
from tests.engine.sizes import SIZES
from tests.engine.stepped import FakeEngine


def grid(sizes: ReportedSizes = SIZES, tokens: int = 4000, seed: int = 0, exact: bool = True) -> list[Scene]:
    return scenes(sizes, tokens, random.Random(seed), exact)


def shapes(scene: Scene, sizes: ReportedSizes = SIZES) -> list[tuple[int, int]]:
    """(decodes, prefill tokens) of each step of a scene on the fake engine."""
    engine = FakeEngine(sizes)
    asks = list(zip(scene.asks, prompts_of(scene, range(10, 99), random.Random(0)), strict=True))
    found, step = [], 0
    while asks or engine.busy:
        while asks and asks[0][0].at_step <= step:
            ask, prompt = asks.pop(0)
            engine.add(engine.make_request("", prompt, ask.output_tokens))
        taken = engine.step()
        step += 1
        if taken is not None:
            found.append((taken.shape.num_decodes, taken.shape.num_prefill_tokens))
    return found


def test_the_same_seed_gives_the_same_grid_and_another_one_another() -> None:
    assert grid(exact=False) == grid(exact=False)
    assert grid(exact=False) != grid(exact=False, seed=1)


def test_prompts_go_by_powers_of_two_up_to_the_budget() -> None:
    (alone,) = [scene for scene in grid() if scene.name == "prefill after 0"]
    assert sorted(ask.prompt_tokens for ask in alone.asks) == [16, 32, 64, 128, 256]
    assert all(ask.output_tokens == 1 and not ask.shared_tokens for ask in alone.asks)
    assert sorted(shapes(alone)) == [(0, 16), (0, 32), (0, 64), (0, 128), (0, 256)]


def test_prompts_after_a_context_share_whole_blocks_of_it() -> None:
    after = [scene for scene in grid() if scene.name.startswith("prefill after")]
    assert len(after) > 2
    for scene in after:
        shared = {ask.shared_tokens for ask in scene.asks}
        assert len(shared) == 1
        assert shared.pop() % SIZES.block_size == 0


def test_decodes_halve_from_the_widest_batch_to_one_with_prompts_between() -> None:
    (short,) = [scene for scene in grid() if scene.name == "16 decodes at 16"]
    taken = shapes(short)
    widths = [decodes for decodes, prefill in taken if not prefill]
    assert {16, 8, 4, 2, 1} <= set(widths)
    mixed = [(decodes, prefill) for decodes, prefill in taken if decodes and prefill]
    assert len({prefill for _, prefill in mixed}) > 2


def test_the_grid_reaches_long_contexts() -> None:
    lengths = context_lengths(SIZES)
    assert lengths[0] == 16
    assert lengths[-1] > SIZES.max_model_len * 0.7
    assert {scene.name.rpartition(" ")[2] for scene in grid() if "decodes" in scene.name} == {
        str(length) for length in lengths
    }


def test_without_prefix_caching_nothing_is_shared() -> None:
    found = grid(replace(SIZES, prefix_caching=False))
    assert not any(ask.shared_tokens for scene in found for ask in scene.asks)


def test_prompts_differ_but_for_what_they_share() -> None:
    scene = max(grid(), key=lambda scene: max(ask.shared_tokens for ask in scene.asks))
    shared = scene.asks[0].shared_tokens
    prompts = list(prompts_of(scene, range(10, 1000), random.Random(0)))
    assert [len(prompt) for prompt in prompts] == [ask.prompt_tokens for ask in scene.asks]
    assert len({tuple(prompt[:shared]) for prompt in prompts}) == 1
    assert len({tuple(prompt[shared : shared + 16]) for prompt in prompts}) == len(prompts)


def test_the_warm_up_holds_the_largest_step_and_the_widest_batch() -> None:
    taken = shapes(warm_up(SIZES))
    assert (0, SIZES.max_num_batched_tokens) in taken
    assert (SIZES.max_num_seqs, 0) in taken


@given(
    seqs=st.integers(1, 300),
    budget=st.integers(16, 9000),
    length=st.integers(64, 40_000),
    blocks=st.integers(64, 20_000),
    block_size=st.sampled_from([16, 32, 128]),
    tokens=st.integers(512, 100_000),
    seed=st.integers(0, 3),
    exact=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_every_request_fits_the_model_and_every_scene_the_pool(
    seqs: int, budget: int, length: int, blocks: int, block_size: int, tokens: int, seed: int, exact: bool
) -> None:
    sizes = replace(
        SIZES,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        max_model_len=length,
        num_blocks=blocks,
        block_size=block_size,
    )
    for scene in grid(sizes, tokens, seed, exact):
        assert list(scene.asks) == sorted(scene.asks, key=lambda ask: ask.at_step)
        for ask in scene.asks:
            assert ask.prompt_tokens >= 1
            assert ask.prompt_tokens + ask.output_tokens <= sizes.max_model_len
            assert ask.prompt_tokens <= KV_SHARE * sizes.kv_capacity_tokens


@pytest.mark.parametrize("context", context_lengths(SIZES))
def test_residents_of_a_scene_fit_the_pool_at_once(context: int) -> None:
    (scene,) = [scene for scene in grid(tokens=10**6) if scene.name.endswith(f"decodes at {context}")]
    held = sum(
        -(-(ask.prompt_tokens + ask.output_tokens) // SIZES.block_size)
        for ask in scene.asks
        if ask.at_step == 0
    )
    joining = max(ask.prompt_tokens for ask in scene.asks if ask.at_step) // SIZES.block_size + 1
    assert held + joining <= SIZES.num_blocks
