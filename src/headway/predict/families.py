"""Model families whose layers `ModelShape` describes, with what their classes take where a config is silent."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from headway.errors import ConfigError
from headway.predict.config_reader import ConfigReader

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
