from __future__ import annotations

from typing import Any

import pytest

from headway.errors import ConfigError
from headway.predict.models.model_shape import model_shape_of
from headway.predict.models.roofline import Roofline
from headway.predict.steps.hardware import hardware
from tests.predict.configs import DEEPSEEK_V2_LITE, DEEPSEEK_V3, LLAMA, LLAMA4, MIXTRAL, QWEN2_57B, QWEN2_MOE
from tests.predict.shapes import batch, decodes


@pytest.mark.parametrize(("config", "billions", "active"), [
    (DEEPSEEK_V2_LITE, 15.7, 2.4), (DEEPSEEK_V3, 671, 36.7), (QWEN2_57B, 57.4, 14.2), (QWEN2_MOE, 14.3, 2.7),
    (MIXTRAL, 46.7, 12.9), (LLAMA4, 400, 17),
])  # fmt: skip
def test_models_have_their_published_size(config: dict[str, Any], billions: float, active: float) -> None:
    """In all, and what a token is multiplied with, tables and all (of DeepSeek-V2-Lite the last)."""
    shape = model_shape_of(config)
    assert shape.num_weights / 1e9 == pytest.approx(billions, rel=0.02)
    tables = 1 if config is DEEPSEEK_V2_LITE else 2
    multiplied = shape.active_weights + tables * shape.vocab_size * shape.hidden_size
    assert multiplied / 1e9 == pytest.approx(active, rel=0.03)


def test_shared_experts_and_a_leading_dense_layer_by_hand() -> None:
    # Attention: queries 2048 x 16 x 192, latent 2048 x 576, keys and values 512 x 16 x 256, out 16 x 128 x 2048.
    # Feed-forward: three of 2048 x 1408 an expert, three of 2048 x 10944 in the first layer; a router of 2048 x 64.
    attention = 6_291_456 + 1_179_648 + 2_097_152 + 4_194_304
    expert, dense, router = 8_650_752, 67_239_936, 131_072
    shape = model_shape_of(DEEPSEEK_V2_LITE)
    assert shape.num_weights == (
        27 * attention + dense + 26 * (router + (64 + 2) * expert) + 2 * 102_400 * 2048
    )
    assert shape.active_weights == 27 * attention + dense + 26 * (router + (6 + 2) * expert)
    assert shape.active_width == (26 * 8 * 1408 + 10944) / 27


@pytest.mark.parametrize(
    ("keys", "dense_layers"),
    [
        ({}, 0),
        ({"decoder_sparse_step": 2}, 12),
        ({"mlp_only_layers": [0, 5, 23]}, 3),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, 13),
        ({"first_k_dense_replace": 3}, 3),
        ({"num_dense_layers": 2}, 2),
        ({"first_k_dense_replace": 3, "moe_layer_freq": 2}, 14),
        ({"moe_layer_freq": [0] * 2 + [1] * 22}, 2),
        ({"mlp_layer_types": ["dense"] + ["sparse"] * 23}, 1),
        ({"decoder_sparse_step": None, "interleave_moe_layer_step": 4}, 18),
        ({"moe_layers": [1, 3]}, 22),
        ({"moe_layer_start_index": 1, "moe_layer_end_index": 20, "moe_layer_interval": 1}, 4),
        ({"decoder_sparse_step": None, "moe_layer_end_index": -1, "moe_layer_interval": 2}, 12),
    ],
)
def test_which_layers_have_experts(keys: dict[str, Any], dense_layers: int) -> None:
    assert model_shape_of(QWEN2_MOE | keys).num_dense_layers == dense_layers


@pytest.mark.parametrize("keys", [
    {"mlp_layer_types": ["dense"] + ["moe"] * 23}, {"mlp_layer_types": ["sparse"] * 3}, {"moe_layer_freq": [1] * 3},
])  # fmt: skip
def test_layers_that_are_not_told_one_by_one_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(keys))):
        model_shape_of(QWEN2_MOE | keys)


@pytest.mark.parametrize("keys", [
    {"num_experts_a_layer": 16}, {"ffn_config": {"moe_num_experts": 16}},
])  # fmt: skip
def test_experts_by_another_name_are_not_taken_for_none(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(keys))):
        model_shape_of(LLAMA | keys, "m")


def test_shared_experts_by_another_name_are_not_overlooked() -> None:
    with pytest.raises(ConfigError, match="num_shared_expert"):
        model_shape_of(MIXTRAL | {"num_shared_expert": 1}, "m")


def test_a_token_passes_no_more_experts_than_there_are() -> None:
    with pytest.raises(ConfigError, match="has 9 experts a token; accepted: at most the 8 that it has"):
        model_shape_of(MIXTRAL | {"num_experts_per_tok": 9})


def test_a_switch_is_no_number_of_experts() -> None:
    switched = MIXTRAL | {"moe_shared_expert_overlap": True, "num_shared_experts": False}
    assert model_shape_of(switched) == model_shape_of(MIXTRAL)


def test_what_a_token_of_deepseek_v3_caches() -> None:
    # The latent and the rotated key, whatever the number of heads: (512 + 64) values a layer of two bytes.
    assert model_shape_of(DEEPSEEK_V3).kv_bytes_per_token == 61 * (512 + 64) * 2


def test_its_projections_by_hand() -> None:
    # Queries by way of 1536 (7168 x 1536, 1536 x 128 x 192), latent 7168 x 576, out of it 512 x 128 x 256,
    # and 128 x 128 x 7168 at the end.
    shape = model_shape_of(DEEPSEEK_V3)
    assert shape.attention_weights == 61 * (11_010_048 + 37_748_736 + 4_128_768 + 16_777_216 + 117_440_512)


def test_a_prompt_attends_by_heads_and_a_single_token_among_latents() -> None:
    shape = model_shape_of(DEEPSEEK_V2_LITE)
    work = Roofline(shape)
    # A prompt's pair: 16 heads, a multiplication and an addition for each of 192 and 128 values.
    assert work.of(batch((2, 0))).prefill_attention_flops == 27 * 3 * 16 * 2 * (192 + 128)
    # A decode's: for each of 576 and 512.
    more = work.of(decodes(1, 100)).flops - work.of(decodes(1, 0)).flops
    assert more == pytest.approx(27 * 100 * 16 * 2 * (576 + 512))


def test_every_gpu_reads_the_whole_latent() -> None:
    shape = model_shape_of(DEEPSEEK_V2_LITE)
    for tp in (1, 8):
        work = Roofline(shape, tp)
        assert work.of(batch((16, 1000))).prefill_context_bytes == 27 * 576 * 2 * 1016
    one, eight = (hardware("h100").calibrate(shape, tp) for tp in (1, 8))
    assert one.kv_bytes_per_token == 27 * 576 * 2
    assert eight.kv_bytes_per_token == 8 * one.kv_bytes_per_token
    assert "latent attention" in eight.provenance


def test_steps_take_longer_the_more_they_hold() -> None:
    step = hardware("h200").calibrate(model_shape_of(DEEPSEEK_V3), 8).step
    assert 0 < step.step_s(decodes(1, 100)) < step.step_s(decodes(64, 100)) < step.step_s(decodes(64, 8000))
    assert step.step_s(batch((512, 0))) < step.step_s(batch((4096, 0)))


def test_a_family_whose_heads_are_cached_is_not_taken_for_one_whose_latents_are() -> None:
    sizes = {"kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}
    with pytest.raises(ConfigError, match="kv_lora_rank"):
        model_shape_of(LLAMA | {"model_type": "minicpm3"} | sizes, "m")
