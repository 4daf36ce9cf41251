from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.engine.demo_model import DemoRecipe
from headway.errors import ConfigError
from headway.predict.models.known_models import KNOWN_MODELS, model_shape
from headway.predict.models.model_shape import model_shape_of
from tests.predict.configs import LLAMA, MIXTRAL, QWEN3_MOE

GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,
    "vocab_size": 50257,
}
OPT: dict[str, Any] = {
    "model_type": "opt",
    "activation_function": "relu",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "ffn_dim": 16384,
    "vocab_size": 50272,
    "torch_dtype": "float16",
}


def test_llama_3_1_8b_by_hand() -> None:
    # A layer: q and o 2 x 4096^2, k and v 2 x 4096 x 1024, three of 4096 x 14336: 218,103,808 weights.
    # 32 layers and two tables of 128256 x 4096: 8,029,995,008. A token's cache: 2 x 32 x 1024 x 2 bytes.
    shape = model_shape_of(LLAMA, "llama")
    assert shape.num_weights == 32 * 218_103_808 + 2 * 128_256 * 4096 == 8_029_995_008
    assert shape.weight_bytes == 2 * 8_029_995_008
    assert shape.kv_bytes_per_token == 131_072


def test_gpt2_by_hand() -> None:
    # A layer: 4 x 768^2 + 2 x 768 x 3072 = 7,077,888. One tied table of 50257 x 768, one of 1024 positions. In fp32:
    # 4 bytes.
    shape = model_shape_of(GPT2 | {"torch_dtype": "float32"})
    assert (shape.gated, shape.tied_embeddings, shape.num_kv_heads) == (False, True, 12)
    assert shape.num_weights == 12 * 7_077_888 + (50_257 + 1024) * 768
    assert shape.weight_bytes == 4 * shape.num_weights


def test_opt_has_a_plain_feed_forward_of_its_own_key() -> None:
    shape = model_shape_of(OPT)
    assert (shape.gated, shape.intermediate_size, shape.tied_embeddings) == (False, 16384, True)


def test_experts_count_whole_in_memory_and_in_part_in_work() -> None:
    # One expert: 3 x 4096 x 14336 = 176,160,768. Attention 41,943,040, router 4096 x 8 = 32,768.
    shape = model_shape_of(MIXTRAL)
    assert shape.active_weights == 32 * (41_943_040 + 32_768 + 2 * 176_160_768)
    assert shape.num_weights == 32 * (41_943_040 + 32_768 + 8 * 176_160_768) + 2 * 32_000 * 4096


def test_qwen3_moe_uses_the_width_of_one_expert() -> None:
    shape = model_shape_of(QWEN3_MOE)
    assert (shape.intermediate_size, shape.query_width, shape.kv_width) == (768, 4096, 512)
    assert shape.num_weights == pytest.approx(30.5e9, rel=0.01)


def test_qwens_first_config_counts_both_halves_of_its_feed_forward() -> None:
    config = {
        "model_type": "qwen",
        "hidden_size": 5120,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "kv_channels": 128,
        "intermediate_size": 27392,
        "vocab_size": 152064,
        "max_position_embeddings": 8192,
        "seq_length": 2048,
        "tie_word_embeddings": False,
    }
    assert model_shape_of(config, "Qwen/Qwen-14B") == model_shape("Qwen-14B")


@pytest.mark.parametrize("family", ["gemma3_text", "cohere", "falcon", "starcoder2", "gpt_bigcode"])
def test_some_families_tie_their_tables_where_their_config_is_silent(family: str) -> None:
    silent = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"}
    assert not model_shape_of(silent).tied_embeddings
    assert model_shape_of(silent | {"model_type": family}).tied_embeddings


def test_gemma_is_gated_whatever_its_activation() -> None:
    assert model_shape_of(LLAMA | {"model_type": "gemma2", "hidden_act": "gelu_pytorch_tanh"}).gated


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ({}, 2048),
        ({"max_position_embeddings": 8192}, 8192),
        ({"max_position_embeddings": None}, 0),
        ({"n_positions": 1024}, 1024),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8}}, 131072),
        ({"max_position_embeddings": 32768, "rope_scaling": {"type": "yarn", "factor": 4}}, 32768),
        ({"max_position_embeddings": 32768, "rope_scaling": {"type": "linear", "factor": 4}}, 131072),
        ({"max_position_embeddings": 32768, "rope_parameters": {"rope_type": "dynamic", "factor": 2}}, 65536),
        (
            {
                "model_type": "gemma3_text",
                "max_position_embeddings": 131072,
                "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0}},
            },
            131072,
        ),
        ({"max_position_embeddings": 32768, "rope_parameters": {"rope_type": "default"}}, 32768),
        (
            {
                "max_position_embeddings": 131072,
                "original_max_position_embeddings": 4096,
                "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]},
            },
            4096,
        ),
        ({"max_position_embeddings": 8192, "seq_length": 2048}, 2048),
        ({"max_position_embeddings": 8192, "max_seq_length": 4096}, 4096),
        ({"max_position_embeddings": 8192, "model_max_length": 131072}, 131072),
        ({"max_position_embeddings": 32768, "rope_scaling": None}, 32768),
    ],
)
def test_how_long_a_request_may_be(positions: dict[str, Any], expected: int) -> None:
    """As vLLM takes it by itself, times the factor by which it stretches positions."""
    assert model_shape_of(LLAMA | positions).context_tokens == expected


def test_a_nested_text_config_is_read() -> None:
    assert model_shape_of({"model_type": "mistral3", "text_config": LLAMA}, "x").hidden_size == 4096


def test_multi_query_attention_has_one_kv_head() -> None:
    falcon = {"model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71}
    assert model_shape_of(falcon | {"multi_query": True, "vocab_size": 65024}).num_kv_heads == 1


@pytest.mark.parametrize(
    "key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size"]
)
def test_a_size_that_neither_config_nor_class_tells_is_named(key: str) -> None:
    config = {name: value for name, value in LLAMA.items() if name != key}
    with pytest.raises(ConfigError, match=key):
        model_shape_of(config | {"model_type": "baichuan"}, "broken")
    with pytest.raises(ConfigError, match=key):
        model_shape_of(LLAMA | {key: None}, "broken")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            LLAMA | {"num_attention_heads": 0},
            "has num_attention_heads = 0; accepted: a whole number, 1 or more",
        ),
        (
            LLAMA | {"num_hidden_layers": -1},
            "has num_hidden_layers = -1; accepted: a whole number, 1 or more",
        ),
        (LLAMA | {"hidden_size": 4096.0}, "has hidden_size = 4096.0; accepted: a whole number, 1 or more"),
        (LLAMA | {"hidden_size": 16}, "has 32 heads for a hidden size of 16; accepted: 1 to 16"),
    ],
)
def test_sizes_that_no_model_has_are_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^the config of 'nonsense' {message}$"):
        model_shape_of(config, "nonsense")


@pytest.mark.parametrize("keys", [
    {"layer_types": ["linear_attention", "full_attention"] * 16}, {"mamba_d_state": 16}, {"index_topk": 2048},
    {"is_encoder_decoder": True}, {"layers_block_type": ["mamba"] * 32},
    {"layer_types": ["sliding_attention"] * 32}, {"attention_chunk_size": 8192}, {"kept_layers": [1, 0] * 16},
    {"num_key_value_heads_per_layer": [4, 2] * 16}, {"hybrid_layer_pattern": [0, 1] * 16},
    {"swa_num_key_value_heads": 4}, {"sliding_window_pattern": 6}, {"num_kv_shared_layers": 10},
    {"sparse_attention_config": {"use_sparse_attention": True}}, {"linear_attn_config": {"kda_layers": [1]}},
    {"another_config": {"size": 1}}, {"global_head_dim": 512},
])  # fmt: skip
def test_layers_of_another_kind_are_not_taken_for_attention(keys: dict[str, Any]) -> None:
    for family in ("llama", "minimax_m9"):  # the key says more than a family that is not known
        with pytest.raises(ConfigError, match=next(iter(keys))):
            model_shape_of(LLAMA | {"model_type": family} | keys, "m")


@pytest.mark.parametrize(("keys", "named"), [
    ({"hidden_act": "swigluoai"}, "hidden_act"),
    ({"hidden_activation": "geglu2"}, "hidden_activation"),
    ({"model_type": "opt", "ffn_dim": 16384, "activation_function": "swiglu"}, "activation_function"),
    ({"model_type": "minimax_m3", "hidden_act": "swigluoai"}, "hidden_act"),
    ({"model_type": "minimax_m3"}, "model_type"),
    ({"model_type": None}, "model_type"),
    ({"architectures": ["LlamaSparseForCausalLM"]}, "architectures"),
    ({"num_key_value_heads": "8"}, "num_key_value_heads"),
    ({"num_key_value_heads": 8.0}, "num_key_value_heads"),
    ({"num_key_value_heads": [8] * 32}, "num_key_value_heads"),
    ({"num_key_value_heads": 5}, "num_key_value_heads"),
    ({"num_key_value_heads": 0}, "num_key_value_heads"),
    ({"tie_word_embeddings": "false"}, "tie_word_embeddings"),
    ({"layer_types": ["full_attention"] * 5}, "layer_types"),
    ({"v_head_dim": 64}, "v_head_dim"),
    ({"model_type": "mixtral", "num_local_experts": None}, "num_local_experts"),
    ({"model_type": "kimi_k2", "n_routed_experts": 8, "num_experts_per_tok": 2}, "moe_intermediate_size"),
    ({"model_type": "opt", "word_embed_proj_dim": 512}, "word_embed_proj_dim"),
    ({"sliding_window": 64, "use_sliding_window": False}, "use_sliding_window"),
    ({"use_sliding_window": True}, "use_sliding_window"),
])  # fmt: skip
def test_what_is_not_known_is_named(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"'m' has .*{named}"):
        model_shape_of(LLAMA | keys, "m")


def test_what_a_family_takes_where_its_config_is_silent() -> None:
    silent = {key: LLAMA[key] for key in LLAMA if key not in ("hidden_act", "num_key_value_heads")}
    llama, mistral = (model_shape_of(silent | {"model_type": name}) for name in ("llama", "mistral"))
    assert (llama.gated, llama.num_kv_heads) == (True, 32)
    assert (mistral.gated, mistral.num_kv_heads) == (True, 8)
    assert model_shape_of(silent | {"model_type": "mistral", "num_key_value_heads": None}).num_kv_heads == 32
    assert model_shape_of(silent | {"model_type": "glm4"}).num_kv_heads == 2
    without_type = {key: value for key, value in silent.items() if key != "model_type"}
    assert model_shape_of(without_type | {"architectures": ["MistralForCausalLM"]}).num_kv_heads == 8


def test_gemma_4_has_a_dense_feed_forward_beside_its_experts() -> None:
    keys = {"num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704, "hidden_act": None}
    gemma = LLAMA | {"model_type": "gemma4_text", "head_dim": 128, "hidden_size_per_layer_input": 0} | keys
    shape = model_shape_of(gemma)
    assert (shape.experts_per_token, shape.intermediate_size) == (8, 704)
    # A layer: attention, router, 128 experts of three times 4096 x 704, three of 4096 x 14336. Heads of the 5 full
    # layers and the last are four times as wide.
    layer = 4096 * 128 + 128 * 3 * 4096 * 704 + 176_160_768
    assert shape.num_weights == 32 * layer + (26 + 6 * 4) * 41_943_040 + 2 * 128_256 * 4096
    dense = model_shape_of(gemma | {"enable_moe_block": False})
    assert (dense.num_experts, dense.intermediate_size) == (0, 14336)


def test_a_text_part_is_filled_up_from_its_class_alone() -> None:
    """LLaVA 1.5 tells its vocabulary; all else is the class's, of which the outer config has no say."""
    llava = {"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}}
    shape = model_shape_of(llava | {"num_hidden_layers": 7})
    assert (shape.hidden_size, shape.num_layers, shape.num_heads, shape.intermediate_size) == (
        4096,
        32,
        32,
        11008,
    )
    del llava["text_config"]["model_type"]  # type: ignore[attr-defined]
    assert model_shape_of(llava).num_weights == shape.num_weights
    with pytest.raises(ConfigError, match="model_type"):
        model_shape_of(llava | {"model_type": "another"})


_GLM_MOE = {
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 1,
}


@pytest.mark.parametrize(("family", "sizes", "keys", "billions"), [
    # Layers, hidden size, heads, KV heads, width of the feed-forward, vocabulary; then what else is published.
    ("llama", (24, 2048, 32, 32, 8192, 49152),
     {"tie_word_embeddings": True, "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}}}, 1.711),
    ("phi3", (32, 3072, 24, 8, 8192, 200064), {"tie_word_embeddings": True, "full_attn_mod": 1}, 3.836),
    ("minimax_m2", (62, 3072, 48, 8, 1536, 200064),
     {"head_dim": 128, "num_local_experts": 256, "num_experts_per_tok": 8, "attn_type_list": [1] * 62,
      "layernorm_full_attention_beta": 1.0, "swa_rope_theta": -1.0, "shared_intermediate_size": 0}, 228.7),
    ("mimo", (36, 4096, 32, 8, 11008, 151680), {"use_sliding_window": False, "sliding_window": 32768}, 7.62),
    ("ernie4_5_moe", (28, 2560, 20, 4, 12288, 103424),
     {"moe_num_experts": 64, "moe_k": 6, "moe_intermediate_size": 1536, "moe_num_shared_experts": 2,
      "moe_layer_start_index": 1, "moe_layer_end_index": -1, "tie_word_embeddings": True}, 21.8),
    ("hunyuan_v1_dense", (32, 4096, 32, 8, 14336, 128167),
     {"num_experts": 1, "moe_topk": 1, "cla_share_factor": 2, "use_cla": False, "tie_word_embeddings": True}, 7.5),
    ("granitemoehybrid", (40, 2560, 40, 8, 8192, 100352),
     {"layer_types": ["attention"] * 40, "mamba_d_state": 256, "num_local_experts": 0,
      "shared_intermediate_size": 8192, "tie_word_embeddings": True}, 3.4),
    ("glm4v_text", (40, 4096, 32, 2, 13696, 151552), {}, 9.4),
    ("glm4v_moe_text", (46, 4096, 96, 8, 10944, 151552),
     {"head_dim": 128, "moe_intermediate_size": 1408} | _GLM_MOE, 106.9),
    ("exaone4", (30, 2048, 32, 8, 4096, 102400), {"tie_word_embeddings": True, "sliding_window": None}, 1.28),
    # Command R7B: of a window of 4,096 tokens, a switch that is no activation, and tied tables by its class.
    ("cohere2", (32, 4096, 32, 8, 14336, 256000),
     {"sliding_window": 4096, "use_gated_activation": True, "use_embedding_sharing": True}, 8.03),
    ("mimo_v2_flash", (48, 4096, 64, 4, 16384, 152576),
     {"attention_chunk_size": 128, "sliding_window_size": 128, "moe_layer_freq": [0] + [1] * 47}, 309),
    ("gemma4_text", (30, 2816, 16, 8, 2112, 262144),  # Gemma 4 26B A4B
     {"attention_k_eq_v": True, "enable_moe_block": True, "num_global_key_value_heads": 2, "num_experts": 128,
      "hidden_size_per_layer_input": 0, "moe_intermediate_size": 704, "top_k_experts": 8,
      "use_bidirectional_attention": "vision"}, 25.2),
    ("llama4_text", (48, 5120, 40, 8, 8192, 202048),
     {"num_local_experts": 16, "num_experts_per_tok": 1, "no_rope_layers": []}, 107.8),
    ("minicpm", (40, 2304, 36, 36, 5760, 122753), {"scale_emb": 12}, 2.72),
])  # fmt: skip
def test_published_models_have_their_size(
    family: str, sizes: tuple[int, ...], keys: dict[str, Any], billions: float
) -> None:
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads")
    config = dict(zip((*names, "intermediate_size", "vocab_size"), sizes, strict=True))
    assert model_shape_of({"model_type": family} | config | keys).num_weights / 1e9 == pytest.approx(
        billions, rel=0.01
    )


def test_sizes_go_by_the_names_of_exaone_and_bloom() -> None:
    exaone = LLAMA | {"model_type": "exaone", "num_layers": 32}
    del exaone["num_hidden_layers"]
    assert model_shape_of(exaone).num_weights == model_shape_of(LLAMA).num_weights
    bloom = {
        "model_type": "bloom",
        "n_embed": 4096,
        "n_layer": 30,
        "num_attention_heads": 32,
        "vocab_size": 250880,
    }
    assert model_shape_of(bloom).num_weights / 1e9 == pytest.approx(7.07, rel=0.01)


@pytest.mark.parametrize("keys", [
    {"attn_type_list": [1, 0] * 16}, {"full_attn_mod": 2}, {"cla_share_factor": 2, "use_cla": True},
])  # fmt: skip
def test_a_key_that_may_mean_nothing_is_refused_where_it_means_something(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(keys))):
        model_shape_of(LLAMA | keys)


@pytest.mark.parametrize("key", ["text_config", "llm_config", "language_config"])
def test_a_language_model_is_read_wherever_it_stands(key: str) -> None:
    silent = {name: value for name, value in LLAMA.items() if name != "tie_word_embeddings"}
    whole = {"model_type": "internvl_chat", "vision_config": {"hidden_size": 1024}, key: silent}
    assert model_shape_of(whole).num_weights == model_shape_of(LLAMA).num_weights
    tied = model_shape_of(whole | {"tie_word_embeddings": True})
    assert tied.num_weights == model_shape_of(LLAMA).num_weights - 128_256 * 4096
    small = model_shape_of(whole | {"quantization_config": {"quant_method": "fp8"}})
    assert small.bytes_per_weight.attention == 1


def test_sizes_of_layers_that_are_not_there_do_no_harm() -> None:
    hybrid = {
        "layer_types": ["attention"] * 32,
        "mamba_d_state": 256,
        "is_encoder_decoder": False,
        "id2label": {0: "A"},
    }
    assert model_shape_of(LLAMA | hybrid) == model_shape_of(LLAMA)


def test_missing_experts_per_token_is_named() -> None:
    with pytest.raises(ConfigError, match="num_experts_per_tok"):
        model_shape_of(LLAMA | {"num_local_experts": 8})


def test_an_unknown_dtype_is_an_error() -> None:
    with pytest.raises(ConfigError, match="int3"):
        model_shape_of(LLAMA | {"torch_dtype": "int3"})


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B", "LLAMA-3.1-8b", "llama-3.1-8b"])
def test_a_known_model_goes_by_either_name_in_any_case(name: str) -> None:
    known = model_shape(name)
    assert known.num_weights == model_shape_of(LLAMA).num_weights


@pytest.mark.parametrize(("name", "billions"), [
    ("llama-2-7b", 6.74), ("llama-2-13b-hf", 13.02), ("llama-2-70b", 68.98), ("llama-3.1-70b", 70.55),
    ("codellama-34b-instruct-hf", 33.74), ("mistral-7b-v0.1", 7.24), ("mixtral-8x7b-v0.1", 46.7),
    ("qwen2.5-14b", 14.77), ("qwen3-8b", 8.19), ("qwen3-14b", 14.77), ("qwen3-32b", 32.76),
    ("qwen3-30b-a3b", 30.53), ("yi-34b", 34.39), ("opt-6.7b", 6.66), ("opt-13b", 12.85),
    ("opt-66b", 65.7), ("opt-175b", 174.6), ("gpt-175b", 174.6), ("bloom-176b", 176.2),
])  # fmt: skip
def test_known_models_have_their_published_size(name: str, billions: float) -> None:
    assert model_shape(name).num_weights / 1e9 == pytest.approx(billions, rel=0.003)


def test_demo_is_the_shipped_model() -> None:
    recipe, shape = DemoRecipe(), model_shape("demo")
    assert shape.hidden_size == recipe.hidden_size
    assert shape.num_layers == recipe.num_hidden_layers
    assert (shape.num_heads, shape.num_kv_heads) == (recipe.num_attention_heads, recipe.num_key_value_heads)
    assert (shape.intermediate_size, shape.vocab_size) == (recipe.intermediate_size, recipe.vocab_size)
    assert shape.head_dim * shape.num_heads == recipe.hidden_size
    assert shape.context_tokens == recipe.max_position_embeddings
    assert replace(shape, name="demo-random") == model_shape("demo-random")


def test_a_directory_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(OPT))
    positions = 2050 * 4096
    assert model_shape(str(tmp_path)).num_weights == model_shape("opt-6.7b").num_weights + positions


def test_a_checkpoint_of_32_bits_is_served_in_16_as_vllm_does(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"torch_dtype": "float32"}))
    served = model_shape(str(tmp_path))
    assert served.weight_bytes == model_shape("llama-3.1-8b").weight_bytes
    assert served.kv_bytes_per_token == model_shape("llama-3.1-8b").kv_bytes_per_token


def test_an_unknown_name_lists_the_known_ones() -> None:
    for name in ("gpt-9", "~gpt-9", ""):
        with pytest.raises(ConfigError, match=rf"unknown model '{name}'; .*Qwen/Qwen3-32B"):
            model_shape(name)


@pytest.mark.parametrize("text", ["{", "[1]", None])
def test_a_broken_config_is_an_error(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json"):
        model_shape(str(tmp_path))


def test_known_models_say_how_long_a_request_may_be() -> None:
    assert min(shape.context_tokens for shape in KNOWN_MODELS) == 2048


def test_names_are_unique() -> None:
    names = [shape.name.lower() for shape in KNOWN_MODELS]
    parts = [name.rpartition("/")[2] for name in names]
    assert len(set(names)) == len(names) == len(set(parts))
