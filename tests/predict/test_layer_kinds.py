from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batch_shape import BatchShape
from headway.errors import ConfigError
from headway.predict.models.attention import AttentionLayers
from headway.predict.models.model_shape import ModelShape, model_shape_of
from headway.predict.models.roofline import Roofline
from headway.predict.steps.hardware import hardware
from tests.predict.configs import GPT_OSS, LLAMA, LLAMA4, MIMO, QWEN2_MOE
from tests.predict.shapes import batch, batches, decodes

_LONG = {"max_position_embeddings": 131072}
_WINDOW = {"sliding_window": 4096} | _LONG


def windows(config: dict[str, Any]) -> dict[int, int]:
    """The number of layers by their window in tokens; 0 stands for all tokens."""
    return {kind.window: kind.num_layers for kind in model_shape_of(config, "m").attention_layers}


def of(family: str, **keys: Any) -> dict[str, Any]:
    return LLAMA | {"model_type": family} | _LONG | keys


@pytest.mark.parametrize(("config", "expected"), [
    # One window for all layers, where the class reads it; one that holds the longest context is none.
    (of("mistral", sliding_window=4096), {4096: 32}),
    (of("mistral"), {4096: 32}),
    (of("mistral", sliding_window=None), {0: 32}),
    (of("mistral", sliding_window=4096, max_position_embeddings=4096), {0: 32}),
    (of("llama", sliding_window=4096), {4096: 32}),
    (of("phi3", sliding_window=2047), {2047: 32}),
    (of("phi3", layer_types=["full_attention"] * 32, sliding_window=2047), {0: 32}),
    (of("starcoder2", sliding_window=4096), {4096: 32}),
    # A switch, off by default.
    (of("qwen2", sliding_window=4096), {0: 32}),
    (of("qwen2", sliding_window=4096, use_sliding_window=False), {0: 32}),
    (of("qwen2", sliding_window=4096, use_sliding_window=True, max_window_layers=0), {4096: 32}),
    (of("qwen2", sliding_window=4096, use_sliding_window=True, max_window_layers=32), {0: 32}),
    (of("qwen3_moe", sliding_window=4096, use_sliding_window=True), {4096: 32}),
    (QWEN2_MOE | _WINDOW | {"use_sliding_window": True}, {0: 24}),
    (of("smollm3", sliding_window=4096, use_sliding_window=True), {0: 24, 4096: 8}),
    # Layers one by one.
    (GPT_OSS, {0: 12, 128: 12}),
    (of("llama", layer_types=["sliding_attention", "full_attention"] * 16, sliding_window=128), {0: 16, 128: 16}),
    (of("olmo3", layer_types=["full_attention"] * 32), {0: 32}),
    (MIMO, {0: 9, 128: 39}),
    (MIMO | {"hybrid_layer_pattern": None}, {0: 9, 128: 39}),
    # A family's own pattern.
    (of("gemma2"), {0: 16, 4096: 16}),
    (of("gemma3_text", sliding_window=512), {0: 5, 512: 27}),
    (of("gemma3_text", sliding_window=512, sliding_window_pattern=2), {0: 16, 512: 16}),
    (of("gemma4_text"), {0: 6, 512: 26}),
    (of("olmo3"), {0: 8, 4096: 24}),
    (of("exaone4", sliding_window=512), {0: 8, 512: 24}),
    (of("exaone4", sliding_window=None), {0: 32}),
    (of("cohere2"), {0: 8, 4097: 24}),  # the token 4096 back is seen too
    (of("cwm"), {0: 8, 8192: 24}),
    (of("afmoe", global_attn_every_n_layers=8), {0: 4, 1024: 28}),
    (of("mellum", layer_types=["sliding_attention"] * 32), {1024: 32}),
    (of("mellum"), {0: 32}),
    # Chunks.
    (LLAMA4 | _LONG, {0: 12, 8192: 36}),
    (LLAMA4 | _LONG | {"attention_chunk_size": None}, {0: 48}),
    (LLAMA4 | _LONG | {"no_rope_layers": [1, 0] * 24}, {0: 24, 8192: 24}),
    (LLAMA4 | {"max_position_embeddings": 8192}, {0: 48}),
])  # fmt: skip
def test_which_layers_have_a_window(config: dict[str, Any], expected: dict[int, int]) -> None:
    assert windows(config) == expected


@pytest.mark.parametrize(("config", "named"), [
    (of("qwen2", sliding_window=4096, use_sliding_window=True, max_window_layers=20), "max_window_layers = 20"),
    (of("qwen3", use_sliding_window=True), "max_window_layers = 28"),
    (of("qwen2", layer_types=["full_attention", "sliding_attention"] * 16, sliding_window=64), "layer_types"),
    (of("gpt_oss", layer_types=["sliding_attention"] * 5), "layer_types"),
    (of("llama", layer_types=["sliding_attention"] * 32), "layer_types"),
    (of("llama", layer_types=["chunked_attention"] * 32, attention_chunk_size=64), "attention_chunk_size"),
    (of("gpt_oss", layer_types=["linear_attention"] * 32), "layer_types"),
    (of("minimax_m9", layer_types=["sliding_attention"] * 32), "layer_types"),
    (of("minimax_m9", sliding_window=64), "sliding_window"),
    (of("mistral", sliding_window="4096"), "sliding_window"),
    (of("mistral", local_window=64), "local_window"),
    (of("exaone4", sliding_window_pattern="LLLG"), "sliding_window_pattern"),
    (of("llama", sliding_window_pattern=4), "sliding_window_pattern"),
    (of("gemma3_text", use_bidirectional_attention=True), "use_bidirectional_attention"),
    (of("llama", hybrid_layer_pattern=[0, 1] * 16), "hybrid_layer_pattern"),
    (MIMO | {"hybrid_layer_pattern": [0, 1]}, "hybrid_layer_pattern"),
    (of("llama", global_head_dim=512), "global_head_dim"),
    (of("gemma4_text", num_kv_shared_layers=10), "num_kv_shared_layers"),
    (of("llama", per_layer_config={"3": {"intermediate_size": 64}}), "per_layer_config"),
    (of("llama", per_layer_config={"32": {"head_dim": 64}}), "per_layer_config"),
    (of("llama", per_layer_config={"full_attention": {"head_dim": 64}}), "per_layer_config"),
    (of("llama", per_layer_config={"3": {"head_dim": "64"}}), "per_layer_config"),
    (of("llama", per_layer_config=[64]), "per_layer_config"),
    (of("granitemoehybrid", num_local_experts=0), "layer_types"),
])  # fmt: skip
def test_layers_that_are_not_known_are_refused_by_their_key(config: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"'m' has .*{named}"):
        model_shape_of(config, "m")


def test_heads_may_differ_between_layers_with_a_window_and_without() -> None:
    """MiMo V2 Flash: keys of 192 and values of 128, of 4 KV heads in 9 layers and of 8 in 39."""
    full, sliding = model_shape_of(MIMO).attention_layers
    assert (full.num_heads, full.num_kv_heads, full.head_dim, full.value_dim) == (64, 4, 192, 128)
    assert (sliding.num_heads, sliding.num_kv_heads, sliding.head_dim, sliding.value_dim) == (64, 8, 192, 128)
    # Only full layers' KV grows: 9 layers of 4 x 320 values of two bytes, 22.5 KiB.
    assert model_shape_of(MIMO).kv_bytes_per_token == 9 * 4 * 320 * 2 == 23_040
    own = {
        "swa_num_attention_heads": 32,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 64,
        "swa_v_head_dim": 32,
    }
    _, sliding = model_shape_of(MIMO | own).attention_layers
    assert (sliding.num_heads, sliding.num_kv_heads, sliding.head_dim, sliding.value_dim) == (32, 2, 64, 32)
    assert sliding.projections(4096) == {"qkv_proj": 4096 * (32 * 64 + 2 * 96), "o_proj": 4096 * 32 * 32}


def test_gemma_4_has_wider_heads_in_layers_without_a_window() -> None:
    gemma = of("gemma4_text", head_dim=256, num_key_value_heads=16, num_global_key_value_heads=4)
    full, sliding = model_shape_of(gemma).attention_layers
    assert (full.num_kv_heads, full.head_dim, sliding.num_kv_heads, sliding.head_dim) == (16, 512, 16, 256)
    told = gemma | {"attention_k_eq_v": True, "global_head_dim": 384}
    full, _ = model_shape_of(told).attention_layers
    assert (full.num_kv_heads, full.head_dim) == (4, 384)


def test_what_differs_by_layer_may_be_told_by_index() -> None:
    config = of("llama", per_layer_config={"3": {"num_key_value_heads": 4}, 5: {"num_key_value_heads": 4}})
    shape = model_shape_of(config)
    assert [(kind.num_layers, kind.num_kv_heads) for kind in shape.attention_layers] == [(30, 8), (2, 4)]
    assert shape.kv_bytes_per_token == (30 * 8 + 2 * 4) * 2 * 128 * 2
    assert shape.num_weights == model_shape_of(LLAMA).num_weights - 2 * 2 * 4 * 128 * 4096


def test_gemma_3_4b_as_it_is_saved() -> None:
    """The text part is what differs from its class: heads, KV heads and vocabulary are not told."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    rope = {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}}
    shape = model_shape_of({"model_type": "gemma3", "text_config": text | rope})
    assert (shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.vocab_size) == (8, 4, 256, 262_208)
    assert {kind.window: kind.num_layers for kind in shape.attention_layers} == {0: 5, 1024: 29}
    assert (shape.tied_embeddings, shape.context_tokens) == (True, 131_072)
    assert shape.num_weights / 1e9 == pytest.approx(3.88, rel=0.01)


# ---- what a window costs ---------------------------------------------------------------------------


def layers(window: int, chunked: bool = False) -> AttentionLayers:
    return AttentionLayers(
        num_layers=1, num_heads=1, num_kv_heads=1, head_dim=64, value_dim=64, window=window, chunked=chunked
    )


def seen_by_token(shape_jobs: list[tuple[int, int]], window: int) -> tuple[int, int, int]:
    """Context of decodes, context of prompts, and pairs of prompts, token by token."""
    decode = prompt = pairs = 0
    for new, cached in shape_jobs:
        if new == 1:
            decode += min(cached + 1, window)
        else:
            prompt += min(cached + new, new + window - 1)
            pairs += sum(min(position, window) for position in range(cached + 1, cached + new + 1))
    return decode, prompt, pairs


@given(
    st.tuples(st.integers(2, 600), st.integers(0, 3000)),
    st.integers(0, 4),
    st.integers(0, 3000),
    st.integers(0, 4),
    st.integers(1, 2000),
)
def test_a_step_of_jobs_alike_is_seen_exactly(
    prompt: tuple[int, int], prompts: int, cached: int, num_decodes: int, window: int
) -> None:
    jobs = [prompt] * prompts + [(1, cached)] * num_decodes
    seen = layers(window).seen(batch(*jobs))
    expected = seen_by_token(jobs, window)
    found = seen.decode_context_tokens, seen.prefill_context_tokens, seen.prefill_pairs
    assert found == pytest.approx(expected)


@given(batches, st.integers(1, 30_000))
def test_a_window_never_shows_more_than_there_is(shape: BatchShape, window: int) -> None:
    seen, wider = layers(window).seen(shape), layers(window + 500).seen(shape)
    assert seen.num_tokens == shape.num_tokens
    for what in ("decode_context_tokens", "prefill_context_tokens", "prefill_pairs"):
        assert getattr(seen, what) <= getattr(wider, what) * (1 + 1e-9) <= getattr(shape, what) * (1 + 2e-9)


def test_no_window_shows_the_step_itself() -> None:
    shape = batch((100, 50), (1, 70))
    assert layers(0).seen(shape) is shape
    assert layers(1 << 20).seen(shape) == shape


def shapes() -> tuple[ModelShape, ModelShape]:
    every = GPT_OSS | {"layer_types": ["full_attention"] * 24}
    return model_shape_of(GPT_OSS), model_shape_of(every)


@pytest.mark.parametrize(
    "step", [decodes(16, 8000), batch((2048, 6000)), batch((512, 4000), *[(1, 4000)] * 8)]
)
def test_windows_make_attention_cheaper_and_nothing_else(step: BatchShape) -> None:
    windowed, full = (Roofline(shape) for shape in shapes())
    assert windowed.of(step).product_flops == full.of(step).product_flops
    assert windowed.of(step).weight_bytes == full.of(step).weight_bytes
    assert windowed.of(step).prefill_attention_flops <= full.of(step).prefill_attention_flops
    assert windowed.of(step).flops < full.of(step).flops
    assert windowed.of(step).bytes < full.of(step).bytes
    law, whole = (hardware("h100").calibrate(shape).step for shape in shapes())
    assert law.step_s(step) < whole.step_s(step)


def test_half_of_the_layers_read_a_window_of_a_long_context() -> None:
    windowed, full = (Roofline(shape) for shape in shapes())
    long = decodes(1, 100_000 - 1)
    rest = windowed.of(decodes(1, 127)).bytes, full.of(decodes(1, 127)).bytes
    assert rest[0] == rest[1]
    more = windowed.of(long).bytes - rest[0], full.of(long).bytes - rest[1]
    assert more[0] == pytest.approx(more[1] / 2)


@pytest.mark.parametrize("step", [decodes(16, 100), batch((64, 0)), batch((64, 32), (1, 90))])
def test_within_the_window_nothing_changes(step: BatchShape) -> None:
    windowed, full = (hardware("h100").calibrate(shape).step for shape in shapes())
    assert windowed.step_s(step) == pytest.approx(full.step_s(step))
