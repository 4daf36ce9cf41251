"""Parts of models, read from a config.json: families, experts, latent attention, and what no shape describes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from headway.errors import ConfigError
from headway.predict.models.config_reader import LAYERS, ConfigReader, context_tokens_of

_ACTIVATION_KEY = re.compile(r"(?<!summary_)(^|(?<=_))(act|activation)(_fn|_func|_function)?$")
_OF_ONE_VALUE = frozenset(
    {
        *("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "gelu_tanh", "quick_gelu"),
        *("relu", "relu2", "silu", "swish", "xielu"),
    }
)
_OF_TWO_VALUES = frozenset({"geglu", "swiglu"})
"""Activations that multiply two projections: only a gated feed-forward has both."""
_DECODER_CLASS = re.compile(r"(.+?)(ForCausalLM|LMHeadModel)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a family's class has built in, and its defaults for keys that a config leaves out.

    `gated`: the feed-forward has three matrices, whatever its activation. `tied`: the LM head is the embedding table.
    `kv_heads` 0 means one for each head, `head_dim` 0 a head's share of the hidden size. `four_times`: the
    feed-forward is four times as wide as the hidden size. `width` is the key of its width where that is none of the
    usual. `both_halves`: `intermediate_size` counts the two halves of a gated feed-forward. `experts` is the key that
    counts experts; with `expert_width` their width is `moe_intermediate_size`, and with `dense_too` tokens pass a
    feed-forward of `intermediate_size` beside them. `window_switch`: a sliding window is in use only if
    `use_sliding_window` is true.
    """

    gated: bool = True
    tied: bool = False
    kv_heads: int = 0
    head_dim: int = 0
    multi_query: bool = False
    four_times: bool = False
    width: str = ""
    both_halves: bool = False
    experts: str = ""
    expert_width: bool = False
    dense_too: bool = False
    window_switch: bool = False


_LLAMA = Family()
_QWEN = Family(window_switch=True)
_QWEN_MOE = replace(_QWEN, experts="num_experts", expert_width=True)
_GEMMA = Family(tied=True, head_dim=256, kv_heads=4)
_GPT = Family(gated=False)
_DEEPSEEK = Family(experts="n_routed_experts", expert_width=True)

FAMILIES = {
    **dict.fromkeys(("llama", "olmo", "olmo2", "flex_olmo", "granite", "stablelm", "phi3"), _LLAMA),
    **dict.fromkeys(("exaone", "hunyuan_v1_dense", "hunyuan_dense_v1"), _LLAMA),
    **dict.fromkeys(
        ("aquila", "baichuan", "internlm", "internlm2", "internlm3", "orion", "xverse", "yi"), _LLAMA
    ),
    "cohere": Family(tied=True),
    "ernie4_5": Family(tied=True, kv_heads=2, head_dim=128),
    "ernie4_5_moe": Family(tied=True, kv_heads=4, experts="moe_num_experts", expert_width=True),
    "exaone4": Family(kv_heads=32),
    "glm": Family(kv_heads=2, head_dim=128),
    "glm4": Family(kv_heads=2, head_dim=128),
    "glm4v_text": Family(kv_heads=2),
    "granitemoehybrid": Family(width="shared_intermediate_size"),
    "helium": Family(kv_heads=20, head_dim=128),
    "mimo": _QWEN,
    "minicpm": Family(tied=True),
    "mistral": Family(kv_heads=8),
    "ministral3": Family(kv_heads=8, head_dim=128),
    "seed_oss": Family(kv_heads=8, head_dim=128),
    "smollm3": Family(tied=True, kv_heads=4, window_switch=True),
    "gemma": replace(_GEMMA, kv_heads=16),
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA,
    "gemma4_text": replace(_GEMMA, expert_width=True, dense_too=True),
    "qwen": Family(both_halves=True),
    "qwen2": replace(_QWEN, kv_heads=32),
    **dict.fromkeys(
        ("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), replace(_QWEN, kv_heads=8)
    ),
    **dict.fromkeys(("qwen3", "qwen3_vl_text"), replace(_QWEN, kv_heads=32, head_dim=128)),
    "qwen2_moe": replace(_QWEN_MOE, kv_heads=16),
    "qwen3_moe": replace(_QWEN_MOE, kv_heads=4),
    "qwen3_vl_moe_text": replace(_QWEN_MOE, kv_heads=16, head_dim=128),
    **dict.fromkeys(("mixtral", "phimoe", "minimax_m2"), Family(kv_heads=8, experts="num_local_experts")),
    **dict.fromkeys(("granitemoe", "granitemoeshared"), Family(experts="num_local_experts")),
    "gpt_oss": Family(kv_heads=8, head_dim=64, experts="num_local_experts"),
    "llama4_text": Family(kv_heads=8, head_dim=128, experts="num_local_experts"),
    "olmoe": Family(kv_heads=16, experts="num_experts"),
    **dict.fromkeys(("deepseek", "deepseek_v2", "deepseek_v3", "kimi_k2", "pangu_ultra_moe"), _DEEPSEEK),
    **dict.fromkeys(("glm4_moe", "glm4v_moe_text"), replace(_DEEPSEEK, kv_heads=8)),
    "glm4_moe_lite": _DEEPSEEK,
    "dots1": replace(_DEEPSEEK, window_switch=True),
    **dict.fromkeys(("apertus", "arcee", "gpt_neox", "nemotron", "persimmon", "phi"), _GPT),
    **dict.fromkeys(("codegen", "gptj"), replace(_GPT, four_times=True)),
    "opt": replace(_GPT, tied=True),
    **dict.fromkeys(("bloom", "gpt2"), replace(_GPT, tied=True, four_times=True)),
    **dict.fromkeys(("falcon", "gpt_bigcode"), replace(_GPT, tied=True, four_times=True, multi_query=True)),
    "starcoder2": replace(_GPT, tied=True, kv_heads=2),
}
"""By `model_type`, with the defaults of transformers 5.19; a family that ships its own code names every size in its
config. A sliding window that a config does not tell of is taken for none."""


def _squeezed(name: str) -> str:
    return name.lower().replace("_", "")


_BY_CLASS = {_squeezed(name.removesuffix("_text")): family for name, family in FAMILIES.items()}


def known_family(read: ConfigReader) -> Family | None:
    """The family that a config names by `model_type`, or by its class where it has none; None if either is unknown."""
    classes = filter(None, (_DECODER_CLASS.match(str(name)) for name in read.listed("architectures")))
    found = [_BY_CLASS.get(_squeezed(name[1])) for name in classes]
    if None in found:
        return None
    model_type = read.config.get("model_type")
    if model_type is None:
        return found[0] if found else None
    return FAMILIES.get(str(model_type).lower())


def check_activations(read: ConfigReader, family: Family | None) -> None:
    """Raise ConfigError for an activation that is not known, or that needs a gate which the family does not have."""
    accepted = _OF_ONE_VALUE | (_OF_TWO_VALUES if family and family.gated else set())
    for key, value in read.config.items():
        if value and _ACTIVATION_KEY.search(key) and str(value).lower() not in accepted:
            raise read.not_accepted(key, ", ".join(sorted(accepted)))


def unknown_family(read: ConfigReader) -> ConfigError:
    """What to raise for a config of a family that is not known."""
    known = str(read.config.get("model_type")).lower() in FAMILIES
    return read.not_accepted("architectures" if known else "model_type", ", ".join(FAMILIES))


_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN = ("num_experts_per_tok", "moe_top_k", "top_k_experts", "moe_k")
_SHARED_COUNTS = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_SHARED_WIDTHS = ("shared_expert_intermediate_size", "shared_intermediate_size")


def num_experts_of(read: ConfigReader) -> int:
    """Experts of a layer to choose from; 0 for a dense model, which one expert is too.

    Raises ConfigError where they go by a name not known.
    """
    experts = read.known(*_COUNTS)
    for key, value in read.config.items():
        nested = value if isinstance(value, dict) else {key: value}
        if not experts and any(_counts_experts(str(inner), number) for inner, number in nested.items()):
            raise read.refuse(key)
    return experts if experts > 1 else 0


def experts_per_token_of(read: ConfigReader, experts: int) -> int:
    """Experts of a layer that a token passes, of so many. Raises ConfigError for more than there are."""
    chosen = read.needed(*_CHOSEN)
    if chosen > experts:
        raise ConfigError(
            f"the config of {read.name!r} has {chosen} experts a token; accepted: at most the {experts} that it has"
        )
    return chosen


def _counts_experts(key: str, value: object) -> bool:
    return "num_experts" in key and key not in _CHOSEN and isinstance(value, int) and value > 1


def layers_with_experts(read: ConfigReader, num_layers: int) -> list[bool]:
    """For each layer whether it has experts: all, unless keys of DeepSeek, Qwen, Llama 4, GLM or ERNIE differ."""
    if kinds := read.by_layer("mlp_layer_types", num_layers):
        if set(kinds) - {"sparse", "dense"}:
            raise read.not_accepted("mlp_layer_types", "sparse and dense")
        return [kind == "sparse" for kind in kinds]
    if named := read.listed("moe_layers"):
        return [layer in named for layer in range(num_layers)]
    if read.listed("moe_layer_freq"):
        return list(map(bool, read.by_layer("moe_layer_freq", num_layers)))
    return [_has_experts(read, layer) for layer in range(num_layers)]


def shared_width(read: ConfigReader, expert_width: int) -> int:
    """Width of what a layer with experts computes for every token: its shared experts together, 0 without."""
    for key in read.config:
        if (
            "share" in key
            and "expert" in key
            and key not in _SHARED_COUNTS + _SHARED_WIDTHS
            and read.known(key)
        ):
            raise read.refuse(key)
    if str(read.config.get("model_type", "")).startswith("llama4"):
        return expert_width
    return read.known(*_SHARED_WIDTHS) or read.known(*_SHARED_COUNTS) * expert_width


def _has_experts(read: ConfigReader, layer: int) -> bool:
    first = read.known("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
    ends = read.config.get("moe_layer_end_index") not in (None, -1)
    behind = ends and layer > read.known("moe_layer_end_index")
    if layer < first or behind or layer in read.listed("mlp_only_layers"):
        return False
    every = read.known("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval") or 1
    return (layer + 1) % every == 0 and layer % (read.known("moe_layer_freq") or 1) == 0


_FAMILIES = ("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "pangu_ultra_moe")
"""Model types whose latents vLLM 0.32 caches as they are; of others it caches the heads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """EngineSizes in the words of DeepSeek's configs; `q_lora_rank` is 0 where queries are made in one product.

    Source: DeepSeek-V2 (2024), section 2.1 and appendix C.
    """

    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    @property
    def cached(self) -> int:
        """Values a layer keeps of a token, whatever the number of heads."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def mean_head_dim(self) -> int:
        """Mean of a head's query and value: what attention of a prompt computes and moves by."""
        return (self.qk_nope_head_dim + self.qk_rope_head_dim + self.v_head_dim) // 2

    def whole_products(self, hidden: int) -> list[tuple[int, int]]:
        """(columns, depth) of a layer's products that every GPU of an instance computes in full."""
        return [(self.q_lora_rank + self.cached, hidden)]

    def shared_products(self, hidden: int, heads: int) -> list[tuple[int, int]]:
        """(columns, depth) of those whose heads the GPUs share; the last ends in the hidden size."""
        query = heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        return [
            (query, self.q_lora_rank or hidden),
            (heads * (self.qk_nope_head_dim + self.v_head_dim), self.kv_lora_rank),
            (hidden, heads * self.v_head_dim),
        ]

    def projections(self, hidden: int, heads: int) -> dict[str, int]:
        """Weights of each of a layer's projections, by the name of its module in vLLM."""
        query, keys_and_values, out = (
            columns * depth for columns, depth in self.shared_products(hidden, heads)
        )
        return {
            "q_a_proj": self.q_lora_rank * hidden,
            "kv_a_proj_with_mqa": self.cached * hidden,
            "q_b_proj" if self.q_lora_rank else "q_proj": query,
            "kv_b_proj": keys_and_values,
            "o_proj": out,
        }

    @property
    def decode_pairs(self) -> float:
        """Operations of a single token on one key, in the latents' own space, over those in a prompt."""
        return (self.cached + self.kv_lora_rank) / (2 * self.mean_head_dim)


def latent_attention_of(read: ConfigReader) -> LatentAttention | None:
    """What a config says of it; None for attention by heads. Raises ConfigError where vLLM caches something else."""
    if not read.known("kv_lora_rank"):
        return None
    if read.config.get("model_type") not in _FAMILIES:
        raise read.refuse("kv_lora_rank")
    return LatentAttention(
        q_lora_rank=read.known("q_lora_rank"),
        kv_lora_rank=read.needed("kv_lora_rank"),
        qk_nope_head_dim=read.needed("qk_nope_head_dim"),
        qk_rope_head_dim=read.needed("qk_rope_head_dim"),
        v_head_dim=read.needed("v_head_dim"),
    )


_STATES = re.compile(r"mamba_|ssm_|lru_|conv_|rwkv|linear_(num|key|value|conv)|.*linear_att")
"""Keys of layers that keep a state in place of KV."""
_OTHER_KINDS = re.compile(
    # Layers that differ from one another.
    r".*per_layer|.*hybrid|.*_pattern$|.*blocks?_(type|config)s?$|.*att(entio)?n_(types?|type_list|layers|idxs?)$"
    r"|attn_layer_(period|offset|ind)|.*full_att|.*attn_every|.*kv_shared|(num_)?global_|swa_|(use_)?cla(_|$)"
    # Layers that read chosen keys, or chunks of them.
    r"|.*sparse_(att|config|block|mode)|sparse_|index_|compress_|.*att(entio)?n_chunk_size|dual_chunk"
    # Keys that serve as values, a second feed-forward, an encoder.
    r"|attention_k_eq_v|use_double_wide|is_encoder_decoder|add_cross_attention|cross_attention"
)
_WINDOW = re.compile(r"(?!use_)(.*sliding_|local_|attention_|attn_)?window(_size)?$")
_FULL, _SLIDING = {"attention", "full_attention"}, "sliding_attention"
_READ_ELSEWHERE = {"layer_types", "mlp_layer_types", "mlp_only_layers", "moe_layer_freq", "moe_layers"}
_HARMLESS_LISTS = re.compile(r"architectures|no_rope_layers|.*token(_id)?s?$|.*languages")
_HARMLESS_OBJECTS = re.compile(
    r"rope_|quantization_config|compression_config|.*label|auto_map|task_specific|generation"
    r"|.*(vision|visual|image|video|audio|speech)|transformers\.js_config"
)
_HARMLESS_NUMBERS = re.compile(r"layernorm_.*_beta|swa_rope_theta")
_EVERY_LAYER_FULL = {"attn_type_list", "full_attn_mod"}
"""Keys that say with 1, once or for each layer, that all layers attend to all keys."""


def refuse_other_kinds(read: ConfigReader, *, window_switch: bool) -> None:
    """Raise ConfigError, naming the key, for layers that keep a state, read chosen keys only, or differ in size.

    With `window_switch` a sliding window is in use only if `use_sliding_window` is true. One that holds the longest
    context is none.
    """
    layers = read.known(*LAYERS)
    kinds = set(map(str, read.by_layer("layer_types", layers)))
    windows = {key: value for key, value in read.config.items() if value and _WINDOW.match(key)}
    narrow = [key for key in windows if not _holds_context(read, key)]
    if kinds - _FULL - {_SLIDING} or (_SLIDING in kinds and (narrow or not windows)):
        raise read.refuse("layer_types")
    if narrow and not kinds and read.config.get("use_sliding_window", not window_switch):
        raise read.refuse(narrow[0])
    if read.config.get("use_sliding_window") and not kinds and not windows:
        raise read.refuse("use_sliding_window")
    for key, value in read.config.items():
        # Where each layer's kind is told, sizes of layers that are not there may stand beside it.
        other = _OTHER_KINDS.match(key) or (not kinds and _STATES.match(key))
        if value and (other or _is_not_read(key, value, layers)) and not _is_harmless(read, key):
            raise read.refuse(key)


def _holds_context(read: ConfigReader, key: str) -> bool:
    window = read.config[key]
    return isinstance(window, int) and 0 < context_tokens_of(read) <= window


def _is_harmless(read: ConfigReader, key: str) -> bool:
    """Whether the key is read elsewhere, or changes nothing at the value that it has."""
    if key in _EVERY_LAYER_FULL:
        return set(read.listed(key) or [read.config[key]]) == {1}
    if key == "sliding_window_pattern":
        return bool(read.listed("layer_types"))
    if key == "cla_share_factor":
        return not read.config.get("use_cla")
    return key in _READ_ELSEWHERE or _HARMLESS_NUMBERS.match(key) is not None


def _is_not_read(key: str, value: object, layers: int) -> bool:
    """Whether it is a list with an entry for each layer, or an object, of which no cost here would depend."""
    if isinstance(value, list | tuple):
        return 1 < len(value) == layers and not _HARMLESS_LISTS.match(key)
    return isinstance(value, Mapping) and not _HARMLESS_OBJECTS.match(key)
