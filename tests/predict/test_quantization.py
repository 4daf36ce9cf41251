from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.core.batch_shape import BatchShape
from headway.errors import ConfigError
from headway.predict.models.model_shape import model_shape_of, read_model_shape
from headway.predict.models.roofline import Roofline
from headway.predict.steps.hardware import hardware
from tests.predict.configs import (
    AWQ,
    DEEPSEEK_V2_LITE,
    DEEPSEEK_V3,
    FP8,
    GPT_OSS,
    INT4,
    LLAMA,
    MIXTRAL,
    QWEN3_MOE,
)
from tests.predict.shapes import batch, decodes

IN_LAYERS, TABLES = 32 * 218_103_808, 2 * 128_256 * 4096


def quantized(config: dict[str, Any], **found: Any) -> dict[str, Any]:
    return LLAMA | {"quantization_config": config | found}


@pytest.mark.parametrize(("found", "bytes_per_weight"), [
    (FP8, 1), ({"quant_method": "fp8"}, 1), ({"quant_method": "fbgemm_fp8"}, 1),
    # A scale of two bytes and a zero of four bits for every 128 weights; compressed-tensors keep the scale alone.
    (AWQ, 0.5 + 2.5 / 128), (AWQ | {"quant_method": "gptq", "bits": 8, "group_size": -1}, 1), (INT4, 0.5 + 2 / 128),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 1),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.5 + 4 / 64),
    ({"quant_method": "modelopt", "quant_algo": "FP8"}, 1),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 0.5 + 1 / 16),
    ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, 1 + 1 / 32),
    ({"quantization": {"quant_algo": "fp8_pb_wo"}}, 1),
    ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True}, 0.5 + 2.5 / 128),
    ({"quant_method": "AWQ", "w_bit": 4, "q_group_size": 64}, 0.5 + 2.5 / 64),
    # Where both spellings stand, vLLM goes by the older one.
    (AWQ | {"bits": 8, "group_size": 32, "w_bit": 4, "q_group_size": 64}, 0.5 + 2.5 / 64),
    *((AWQ | {"quant_method": name}, 0.5 + 2.5 / 128) for name in ("auto_awq", "awq_marlin", "gptq_marlin", "inc")),
    ({"quant_method": "modelopt_mxfp8"}, 1 + 1 / 32),
    ({"quant_method": "modelopt_fp4", "quant_algo": "nvfp4"}, 0.5 + 1 / 16),
    ({"quant_method": "modelopt", "quantization": {"quant_algo": "W4A16_NVFP4"}}, 0.5 + 1 / 16),
    ({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}}, 1),
    (FP8 | {"quant_method": "compressed_tensors"}, 1),
])  # fmt: skip
def test_layers_are_as_small_as_their_bits(found: dict[str, Any], bytes_per_weight: float) -> None:
    """Tables keep two bytes, and so does the cache; there are as many weights."""
    shape = model_shape_of(quantized(found))
    assert shape.weight_bytes == round(IN_LAYERS * bytes_per_weight + 2 * TABLES)
    assert shape.num_weights == IN_LAYERS + TABLES
    assert shape.kv_bytes_per_token == 131_072


@pytest.mark.parametrize(("found", "gigabytes"), [(FP8, 9.08), (AWQ, 5.73), (INT4, 5.73)])
def test_checkpoints_of_llama_3_1_8b_have_their_published_size(
    found: dict[str, Any], gigabytes: float
) -> None:
    assert model_shape_of(quantized(found)).weight_bytes / 1e9 == pytest.approx(gigabytes, rel=0.02)


def test_deepseek_v3_and_gpt_oss_have_their_published_size() -> None:
    # DeepSeek-V3: 671 GB in eight bits and two tables of 129,280 x 7168 in sixteen. gpt-oss-20b: 13.8 GB.
    assert model_shape_of(DEEPSEEK_V3).weight_bytes / 1e9 == pytest.approx(671 + 1.9, rel=0.02)
    assert model_shape_of(GPT_OSS).weight_bytes / 1e9 == pytest.approx(13.8, rel=0.02)


@pytest.mark.parametrize(("kept", "bytes_of_kept"), [
    (["lm_head"], 0),
    (["self_attn"], 32 * 41_943_040),
    (["model.layers.*.self_attn"], 32 * 41_943_040),
    (["re:.*self_attn.*"], 32 * 41_943_040),
    (["model.layers.0", "model.layers.31.mlp"], 218_103_808 + 176_160_768),
    (["mlp.down_proj"], 32 * 176_160_768 // 3),
    (["re:.*mlp.gate_up_proj"], 32 * 176_160_768 * 2 // 3),
    (["o_proj"], 32 * 4096 * 4096),
    (["q_proj", "k_proj", "v_proj"], 32 * 4096 * (4096 + 2048)),
    (["gate", "re:.*lm_head", "model.layers.3.mlp.down"], 0),
])  # fmt: skip
def test_modules_that_are_named_keep_their_width(kept: list[str], bytes_of_kept: int) -> None:
    for key in ("ignore", "modules_to_not_convert"):
        shape = model_shape_of(quantized({"quant_method": "fp8"}, **{key: kept}))
        assert shape.weight_bytes == IN_LAYERS + bytes_of_kept + 2 * TABLES


def test_a_scheme_is_of_the_modules_it_names() -> None:
    groups = {
        "mlp": {
            "targets": ["re:.*(gate_up|down)_proj"],
            "weights": {"num_bits": 4, "type": "int", "group_size": 32},
        },
        "rest": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int"}},
    }
    shape = model_shape_of(quantized(FP8, config_groups=groups))
    assert shape.weight_bytes == 32 * (41_943_040 + 176_160_768 * (0.5 + 2 / 32)) + 2 * TABLES


def test_what_gptqmodel_leaves_as_it_is() -> None:
    shape = model_shape_of(quantized(AWQ, quant_method="gptq", dynamic={"-:.*attn.*": {}}))
    assert shape.weight_bytes == round(32 * (2 * 41_943_040 + 176_160_768 * (0.5 + 2.5 / 128)) + 2 * TABLES)


def test_gptq_may_quantise_chosen_modules_alone() -> None:
    names = [["self_attn.k_proj", "self_attn.v_proj", "self_attn.q_proj"], ["mlp.up_proj"], "mlp.down_proj"]
    chosen = AWQ | {"quant_method": "gptq", "modules_in_block_to_quantize": names}
    shape = model_shape_of(quantized(chosen))
    left = 2 * 32 * 4096 * 4096  # the projection out of attention
    small = IN_LAYERS - 32 * 4096 * 4096
    assert shape.weight_bytes == round(left + small * (0.5 + 2.5 / 128) + 2 * TABLES)
    assert (
        model_shape_of(quantized(chosen | {"modules_in_block_to_quantize": []})).weight_bytes
        < shape.weight_bytes
    )


def test_what_auto_round_leaves_as_it_is() -> None:
    kept = {"model.layers.3.self_attn.o_proj": {"bits": 16}, "layers.4.*o_proj": {"bits": 16}}
    shape = model_shape_of(quantized(AWQ, quant_method="auto-round", extra_config=kept))
    wide = 2 * 4096 * 4096
    assert shape.weight_bytes == round(2 * wide + (IN_LAYERS - wide) * (0.5 + 2.5 / 128) + 2 * TABLES)


def test_a_zero_of_each_group_counts() -> None:
    weights = {"num_bits": 4, "type": "int", "group_size": 32, "symmetric": False}
    shape = model_shape_of(quantized(INT4, config_groups={"g": {"targets": ["Linear"], "weights": weights}}))
    assert shape.weight_bytes == IN_LAYERS * (0.5 + 2.5 / 32) + 2 * TABLES


def test_latent_attention_may_be_quantised_in_part() -> None:
    kept = {"ignore": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"]}
    shape = model_shape_of(DEEPSEEK_V3 | {"quantization_config": {"quant_method": "fp8"} | kept})
    narrow, size = 61 * 128 * 128 * 7168, shape.attention_weights
    assert shape.bytes_per_weight.attention == pytest.approx(2 - narrow / size)


def test_quantised_weights_stand_beside_16_bits() -> None:
    config = quantized(FP8, ignore=["self_attn"])
    assert model_shape_of(config | {"torch_dtype": "float32"}) == model_shape_of(config)


def test_experts_may_be_quantised_alone() -> None:
    shape = model_shape_of(GPT_OSS)
    assert shape.quantized is not None
    assert (shape.quantized.attention, shape.quantized.experts) == (2, 0.5 + 1 / 32)


def test_a_language_model_is_quantised_by_what_stands_beside_it() -> None:
    config = {"text_config": LLAMA, "quantization_config": FP8 | {"ignore": ["re:vision_tower.*"]}}
    assert model_shape_of(config).weight_bytes == IN_LAYERS + 2 * TABLES


@pytest.mark.parametrize(("file", "found", "kv_bytes"), [
    (
        "hf_quant_config.json",
        {
            "producer": {"name": "modelopt"},
            "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]},
        },
        1,
    ),
    ("quantize_config.json", {"bits": 8, "group_size": -1, "sym": True}, 2),
    ("quant_config.json", {"w_bit": 8, "q_group_size": -1, "zero_point": True}, 2),
])  # fmt: skip
def test_what_stands_beside_the_config_is_read(
    tmp_path: Path, file: str, found: dict[str, Any], kv_bytes: int
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / file).write_text(json.dumps(found))
    shape = read_model_shape(tmp_path)
    assert shape.weight_bytes == IN_LAYERS + 2 * TABLES
    assert shape.kv_bytes_per_token == 131_072 * kv_bytes // 2
    (tmp_path / "config.json").write_text(json.dumps(quantized(INT4)))
    assert read_model_shape(tmp_path) == replace(model_shape_of(quantized(INT4)), name=tmp_path.name)


def test_what_stands_beside_the_config_must_be_understood(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    beside = tmp_path / "hf_quant_config.json"
    for text, named in (
        ("{", "hf_quant_config"),
        ('{"quantization": {"quant_algo": "W4A8_AWQ"}}', "quant_algo"),
    ):
        beside.write_text(text)
        with pytest.raises(ConfigError, match=named):
            read_model_shape(tmp_path)


@pytest.mark.parametrize("config", [
    LLAMA | {"compression_config": FP8},
    {"text_config": LLAMA | {"compression_config": FP8}},
    {"text_config": LLAMA, "compression_config": FP8},
])  # fmt: skip
def test_the_older_name_of_the_key_is_read(config: dict[str, Any]) -> None:
    assert model_shape_of(config).weight_bytes == IN_LAYERS + 2 * TABLES


_BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
_CT_BLOCKS = {
    "g": {
        "targets": ["Linear"],
        "weights": {"num_bits": 8, "strategy": "block", "block_structure": [128, 128]},
    }
}

_CT_OLD_BLOCKS = {"g": {"targets": ["Linear"], "weights": {"num_bits": 8, "block_structure": "128x128"}}}


@pytest.mark.parametrize(("config", "tp", "size"), [
    (QWEN3_MOE | {"quantization_config": _BLOCKS}, 2, None),
    (QWEN3_MOE | {"quantization_config": _BLOCKS}, 4, "192 of the width of 768"),
    (QWEN3_MOE | {"quantization_config": FP8 | {"config_groups": _CT_OLD_BLOCKS}}, 4, "192 of the width of 768"),
    (QWEN3_MOE | {"quantization_config": FP8 | {"config_groups": _CT_BLOCKS}}, 4, "192 of the width of 768"),
    (QWEN3_MOE | {"quantization_config": _BLOCKS | {"modules_to_not_convert": ["mlp.experts"]}}, 4, None),
    (LLAMA | {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}}, 16, None),
    (LLAMA | {"quantization_config": _BLOCKS, "intermediate_size": 11008}, 4, "2752 of the width of 11008"),
    (LLAMA | {"quantization_config": _BLOCKS, "head_dim": 64}, 8, "64 of the 512 values of all KV heads"),
    (DEEPSEEK_V2_LITE | {"quantization_config": _BLOCKS}, 16, "192 of the 3072 columns of a projection"),
    (LLAMA | {"quantization_config": FP8, "intermediate_size": 11008}, 4, None),
])  # fmt: skip
def test_a_gpu_has_whole_blocks(config: dict[str, Any], tp: int, size: str | None) -> None:
    shape = model_shape_of(config, "m")
    if size is None:
        hardware("h200").calibrate(shape, tp)
    else:
        with pytest.raises(
            ConfigError, match=f"tensor parallelism {tp} leaves a GPU {size} .*weight_block_size"
        ):
            hardware("h200").calibrate(shape, tp)


@pytest.mark.parametrize(("config", "tp", "size"), [
    # Qwen2.5-72B as first quantised, and with the feed-forward that it was padded to for this.
    (quantized(AWQ, quant_method="gptq") | {"intermediate_size": 29568}, 8, "3696 of the width of 29568"),
    (quantized(AWQ) | {"intermediate_size": 29696}, 8, None),
    (quantized(AWQ, group_size=-1) | {"intermediate_size": 29568}, 8, None),
    (quantized(INT4) | {"intermediate_size": 29568}, 8, "3696 of the width of 29568"),
    (quantized({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}), 8, None),
    (quantized(AWQ) | {"num_attention_heads": 32, "head_dim": 64}, 32, "64 of the 2048 values of all heads"),
    (QWEN3_MOE | {"quantization_config": AWQ}, 4, None),
])  # fmt: skip
def test_a_gpu_has_whole_groups(config: dict[str, Any], tp: int, size: str | None) -> None:
    shape = model_shape_of(config, "m")
    if size is None:
        hardware("h200").calibrate(shape, tp)
    else:
        with pytest.raises(ConfigError, match=f"tensor parallelism {tp} leaves a GPU {size} .*group_size"):
            hardware("h200").calibrate(shape, tp)


@pytest.mark.parametrize("found", [
    {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, {"kv_cache_quant_algo": "FP8"},
])  # fmt: skip
def test_scales_for_the_cache_halve_it(found: dict[str, Any]) -> None:
    assert model_shape_of(quantized(FP8, **found)).kv_bytes_per_token == 131_072 // 2


@pytest.mark.parametrize(("found", "key"), [
    ({"quant_method": "hqq"}, "quant_method"), ({"bits": 4}, "quant_method"),
    (AWQ | {"bits": None}, "bits"), (AWQ | {"group_size": None}, "group_size"),
    ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
    ({"quant_method": "fp8", "kv_cache_quant_algo": "NVFP4"}, "kv_cache_quant_algo"),
    ({"quant_method": "modelopt", "quant_algo": "W4A8"}, "quant_algo"),
    (FP8 | {"config_groups": {}}, "config_groups"), (FP8 | {"config_groups": {"g": "Linear"}}, "config_groups"),
    (FP8 | {"config_groups": {"g": {"weights": 8}}}, "config_groups"),
    (FP8 | {"ignore": [7]}, "ignore"), (FP8 | {"ignore": ["re:*lm_head"]}, "lm_head"),
    (FP8 | {"config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 3}}}}, "num_bits"),
    (FP8 | {"kv_cache_scheme": {"num_bits": 4}}, "kv_cache_scheme"),
    (AWQ | {"lm_head": True}, "lm_head"), (AWQ | {"data_type": "mx_fp"}, "data_type"),
    (AWQ | {"extra_config": {"model.layers.0.mlp": {"bits": 8}}}, "extra_config"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": False}, "load_in_4bit"),
    ({"quant_method": "mxfp4"}, "quant_method"), (FP8 | {"ignore": ["re:.*"]}, "quant_method"),
    (FP8 | {"config_groups": {"g": {"targets": ["QKVParallelLinear"], "weights": {"num_bits": 8}}}}, "quant_method"),
    (FP8 | {"config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 8, "group_size": [1, 128]}}}},
     "group_size"),
    (FP8 | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
    (AWQ | {"modules_in_block_to_quantize": [[7]]}, "modules_in_block_to_quantize"),
    ({"quant_method": "quark"}, "quant_method"),
    ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "quant_algo"),
    (AWQ | {"dynamic": {"+:.*attn.*": {"bits": 8}}}, "dynamic"), (AWQ | {"dynamic": [7]}, "dynamic"),
])  # fmt: skip
def test_what_is_not_understood_is_named(found: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        model_shape_of(LLAMA | {"quantization_config": found})


def test_steps_read_the_weights_as_they_are_stored() -> None:
    whole, small = (Roofline(model_shape_of(each)) for each in (LLAMA, quantized(FP8)))
    shape = decodes(1, 9)
    assert whole.of(shape).bytes - small.of(shape).bytes == IN_LAYERS
    assert whole.of(shape).flops == small.of(shape).flops
    whole, small = (
        Roofline(model_shape_of(each)) for each in (MIXTRAL, MIXTRAL | {"quantization_config": FP8})
    )
    attention, expert, router = 41_943_040, 176_160_768, 32_768
    assert whole.of(shape).weight_bytes == 2 * (32 * (attention + router + 2 * expert) + 32_000 * 4096)
    assert small.of(shape).weight_bytes == whole.of(shape).weight_bytes - 32 * (attention + 2 * expert)


@pytest.mark.parametrize("shape", [decodes(1, 100), decodes(64, 100), batch((512, 0))])
def test_a_gpu_is_faster_and_has_more_room(shape: BatchShape) -> None:
    whole, small = (hardware("h100").calibrate(model_shape_of(each)) for each in (LLAMA, quantized(FP8)))
    assert whole.step.step_s(shape) / 2 < small.step.step_s(shape) <= whole.step.step_s(shape)
    assert small.kv_capacity_tokens - whole.kv_capacity_tokens == pytest.approx(IN_LAYERS / 131_072, abs=1)
    assert "quantised" in small.provenance
    assert "quantised" not in whole.provenance
