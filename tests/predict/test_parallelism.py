from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headway.errors import ConfigError
from headway.predict.models.model_shape import model_shape_of
from headway.predict.models.parallelism import check_parallelism
from tests.predict.configs import (
    DEEPSEEK_V2_LITE,
    DEEPSEEK_V3,
    GPT_OSS,
    LLAMA,
    MIMO,
    MIXTRAL,
    QWEN2_MOE,
    QWEN3_MOE,
)


@pytest.mark.parametrize(("config", "tp", "why"), [
    (LLAMA, 8, None),
    (LLAMA, 64, "does not divide the 32 heads"),
    (LLAMA | {"num_attention_heads": 40, "num_key_value_heads": 10}, 4, "does not share the 10 KV heads"),
    # vLLM pads the vocabulary to a multiple of 64, and then wants it whole.
    (LLAMA | {"vocab_size": 32_003}, 8, None),
    (LLAMA | {"num_attention_heads": 48, "num_key_value_heads": 12, "intermediate_size": 12288}, 3, None),
    (LLAMA | {"num_attention_heads": 42, "num_key_value_heads": 7, "intermediate_size": 14336, "head_dim": 128}, 7,
     r"does not divide the 128256 \(vocab_size, padded\)"),
    (LLAMA | {"intermediate_size": 14332}, 8, r"does not divide the 14332 \(intermediate_size\)"),
    (QWEN3_MOE | {"moe_intermediate_size": 764}, 8, r"does not divide the 764 \(moe_intermediate_size\)"),
    (QWEN2_MOE | {"shared_expert_intermediate_size": 5636}, 8, r"does not divide the 5636 \(width of the shared"),
    (QWEN2_MOE | {"mlp_only_layers": [0], "intermediate_size": 5636}, 8,
     r"does not divide the 5636 \(intermediate_size\)"),
    # Some families are not split over more GPUs than they have experts.
    (QWEN3_MOE | {"num_experts": 4, "num_experts_per_tok": 2}, 8, r"more than the 4 experts \(num_experts\)"),
    (MIXTRAL | {"num_local_experts": 4}, 8, None),
    # Of latents every GPU has all; of other layers each kind must be split.
    (DEEPSEEK_V2_LITE, 16, None), (DEEPSEEK_V3 | {"quantization_config": None}, 64, None),
    (GPT_OSS | {"quantization_config": None}, 8, None),
    (MIMO | {"swa_num_attention_heads": 24, "swa_num_key_value_heads": 8}, 16, "does not divide the 24 heads"),
    (MIMO | {"swa_num_key_value_heads": 2}, 8, None), (MIMO | {"swa_num_key_value_heads": 32}, 64, None),
    (MIMO | {"swa_num_attention_heads": 48, "swa_num_key_value_heads": 6}, 16, "does not share the 6 KV heads"),
])  # fmt: skip
def test_what_vllm_refuses_is_refused_with_its_reason(
    config: dict[str, Any], tp: int, why: str | None
) -> None:
    shape = model_shape_of(config, "m")
    if why is None:
        check_parallelism(shape, tp, 1)
    else:
        with pytest.raises(ConfigError, match=f"tensor parallelism {tp} (is )?{why}"):
            check_parallelism(shape, tp, 1)


@pytest.mark.parametrize("tp", [0, -1])
def test_no_gpu_is_none(tp: int) -> None:
    with pytest.raises(ConfigError, match="tensor parallelism"):
        check_parallelism(model_shape_of(LLAMA), tp, 1)


def test_stages_share_the_layers() -> None:
    shape = replace(model_shape_of(LLAMA, "m"), num_layers=3)
    check_parallelism(shape, 1, 3)
    for stages in (0, 4):
        with pytest.raises(ConfigError, match=f"{stages} pipeline stages do not share the 3 layers"):
            check_parallelism(shape, 1, stages)
