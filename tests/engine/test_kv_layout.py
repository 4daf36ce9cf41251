"""How layers share the KV cache, compared with vLLM's own KV cache specs of models that it builds without weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.predict.models.kv_groups import KvGroup, KvLayout, kv_layout_of
from headway.predict.models.model_shape import read_model_shape

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

BLOCK_TOKENS = 32
"""The least that vLLM's CPU attention takes."""
SMALL = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
MODELS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", 4, {}),
    "mistral": ("MistralForCausalLM", 4, {"sliding_window": 64}),
    "qwen2": ("Qwen2ForCausalLM", 4, {"head_dim": None}),
    "qwen3": ("Qwen3ForCausalLM", 4, {}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", 4, EXPERTS),
    "gemma2": ("Gemma2ForCausalLM", 6, {"sliding_window": 64}),
    "gemma3_text": ("Gemma3ForCausalLM", 8, {"sliding_window": 64}),
    "gemma4_text": (
        "Gemma4ForCausalLM",
        8,
        {"sliding_window": 64, "global_head_dim": 64, "hidden_size_per_layer_input": 0},
    ),
    "gpt_oss": ("GptOssForCausalLM", 4, EXPERTS | {"sliding_window": 64}),
    "cohere2": ("Cohere2ForCausalLM", 8, {"sliding_window": 64, "head_dim": None}),
    "exaone4": ("Exaone4ForCausalLM", 9, {"sliding_window": 64}),
    "olmo3": ("Olmo3ForCausalLM", 8, {"sliding_window": 64, "head_dim": None}),
    "llama4_text": (
        "Llama4ForCausalLM",
        8,
        EXPERTS | {"attention_chunk_size": 64, "intermediate_size_mlp": 512},
    ),
    "phi3": ("Phi3ForCausalLM", 4, {"sliding_window": 64, "head_dim": None, "pad_token_id": 0}),
    "starcoder2": ("Starcoder2ForCausalLM", 4, {"sliding_window": 64, "head_dim": None}),
    "falcon": ("FalconForCausalLM", 4, {"head_dim": None}),
    "opt": (
        "OPTForCausalLM",
        4,
        {"ffn_dim": 512, "word_embed_proj_dim": 256, "head_dim": None, "num_key_value_heads": None},
    ),
    "glm4": ("Glm4ForCausalLM", 4, {}),
    "granite": ("GraniteForCausalLM", 4, {"head_dim": None}),
}


@pytest.fixture(scope="module")
def one_process() -> Iterator[None]:
    """vLLM's models ask which of how many workers they are built in; and their classes are imported here."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory
    from vllm.model_executor.models import registry
    from vllm.utils.network_utils import get_open_port

    inspected = registry._run_in_subprocess
    registry._run_in_subprocess = lambda ask: ask()
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"tcp://127.0.0.1:{get_open_port()}", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
    yield
    registry._run_in_subprocess = inspected
    cleanup_dist_env_and_memory()


def vllm_groups(folder: Path) -> list[Any]:
    """vLLM's groups of layers, of a model made of nothing but its shapes."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model

    try:
        from vllm.v1.core.kv_cache_planning import get_kv_cache_groups  # type: ignore[import-not-found]
    except ModuleNotFoundError:  # vLLM 0.32
        from vllm.v1.core.kv_cache_utils import get_kv_cache_groups

    arguments = {"load_format": "dummy", "enforce_eager": True, "block_size": BLOCK_TOKENS}
    config = EngineArgs(model=str(folder), skip_tokenizer_init=True, **arguments).create_engine_config()
    with set_current_vllm_config(config), torch.device("meta"):
        initialize_model(config)
    layers = config.compilation_config.static_forward_context
    specs = {
        name: layer.get_kv_cache_spec(config)
        for name, layer in layers.items()
        if hasattr(layer, "get_kv_cache_spec")
    }
    config.cache_config.kv_cache_layout = "LBHNC"  # as on GPUs; a CPU takes blocks outermost
    found: list[Any] = get_kv_cache_groups(config, specs)
    return found


def layout_of(groups: list[Any]) -> KvLayout:
    """vLLM's groups in our words: those without a window first."""
    found: dict[KvGroup, int] = {}
    for each in groups:
        spec = each.kv_cache_spec
        window = getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None) or 0
        chunked = bool(window) and getattr(spec, "sliding_window", None) is None
        group = KvGroup(block_size=spec.block_size, window=window, chunked=chunked)
        found[group] = found.get(group, 0) + 1
    counted = [
        KvGroup(count=count, block_size=group.block_size, window=group.window, chunked=group.chunked)
        for group, count in found.items()
    ]
    page = groups[0].kv_cache_spec.page_size_bytes
    most = max(len(each.layer_names) for each in groups)
    return KvLayout(
        groups=tuple(sorted(counted, key=lambda group: group.window > 0)), block_bytes=page * most
    )


@pytest.mark.parametrize("family", MODELS)
def test_vllm_lays_out_the_cache_as_we_do(family: str, one_process: None, tmp_path: Path) -> None:
    import torch
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    name, num_layers, keys = MODELS[family]
    sizes = SMALL | {"num_hidden_layers": num_layers} | keys
    config = CONFIG_MAPPING[family](**{key: value for key, value in sizes.items() if value is not None})
    config.architectures, config.dtype = [name], torch.bfloat16
    config.save_pretrained(tmp_path)
    assert kv_layout_of(read_model_shape(tmp_path), 1, BLOCK_TOKENS) == layout_of(vllm_groups(tmp_path))
