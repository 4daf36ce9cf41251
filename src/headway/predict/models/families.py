"""Model families: what their classes have built in, and the family of a config.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headway.errors import ConfigError
from headway.predict.models.config_reader import ConfigReader, defaults_of

_ACTIVATION_KEY = re.compile(r"(?<!summary_)(^|(?<=_))(act|activation)(_fn|_func|_function)?$")
_OF_ONE_VALUE = frozenset(
    {
        *("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "gelu_tanh", "quick_gelu"),
        *("relu", "relu2", "silu", "swish", "xielu"),
    }
)
_OF_TWO_VALUES = frozenset({"geglu", "swiglu"})
"""Activations that multiply two projections, which only a gated feed-forward has."""
_DECODER_CLASS = re.compile(r"(.+?)(ForCausalLM|LMHeadModel)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Which layers of a family have a sliding window, if no key of the config lists them.

    `full_every`: of this many layers the last attends to all tokens, or the first with `full_first`; 0: all layers are
    alike. `also_full` are indices of further such layers. `pattern` is the key for another `full_every`. `switch`: a
    window is used only if `use_sliding_window` is true. `from_layer`: `max_window_layers` layers have no window; vLLM
    0.32 accepts only all or none. `rotary`: only layers with rotary positions have a window, or only those without.
    `chunked`: the window is the token's chunk of `attention_chunk_size` tokens. `inclusive`: a token also sees the
    token `sliding_window` back.
    """

    full_every: int = 0
    full_first: bool = False
    also_full: tuple[int, ...] = ()
    pattern: str = ""
    switch: bool = False
    from_layer: bool = False
    rotary: bool | None = None
    chunked: bool = False
    inclusive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a family's class has built in, and its defaults for keys that a config omits.

    `gated`: the feed-forward has three matrices, whatever its activation. `four_times`: the feed-forward is four times
    as wide as the hidden size. `width` is the key for its width if it is unusual. `both_halves`: `intermediate_size`
    counts both halves of a gated feed-forward. `experts` is the key for the number of experts; with `expert_width`
    their width is `moe_intermediate_size`, and with `dense_too` tokens also pass a feed-forward of `intermediate_size`;
    the first `dense_layers` have no experts if no key says so. `defaults` are for families that transformers lacks;
    `family_defaults.json` has the others. `global_heads`: layers without a window have separate keys for their heads
    (Gemma 4), `swa_heads`: layers with one have (MiMo). `more_positions`: positions are learned, in a table with this
    many extra rows; None if they are not learned. `listed`: layers keep a state unless `layer_types` says that they
    attend. `gpus_by_experts`: vLLM 0.32 refuses more GPUs than experts.
    """

    gated: bool = True
    four_times: bool = False
    width: str = ""
    both_halves: bool = False
    experts: str = ""
    expert_width: bool = False
    dense_too: bool = False
    dense_layers: int = 0
    windows: Windows = Windows()
    global_heads: bool = False
    swa_heads: bool = False
    more_positions: int | None = None
    listed: bool = False
    gpus_by_experts: bool = False
    defaults: Mapping[str, int | bool] = field(default_factory=dict)


_LLAMA = Family()
_TIED = Family(defaults={"tie_word_embeddings": True})
_QWEN = Family(windows=Windows(switch=True, from_layer=True))
_EXPERTS = Family(experts="num_experts", expert_width=True, gpus_by_experts=True)
_QWEN_MOE = replace(_EXPERTS, windows=Windows(switch=True))
_GPT = Family(gated=False)
_DEEPSEEK = Family(experts="n_routed_experts", expert_width=True)
_LOCAL = Family(experts="num_local_experts")


def _every(layers: int) -> Windows:
    return Windows(full_every=layers, pattern="sliding_window_pattern")


_FIRST_OF_FOUR = Windows(full_every=4, full_first=True)

FAMILIES = {
    **dict.fromkeys(("llama", "olmo", "olmo2", "granite", "stablelm", "phi3"), _LLAMA),
    **dict.fromkeys(("exaone", "hunyuan_v1_dense", "hunyuan_dense_v1", "hyperclovax"), _LLAMA),
    **dict.fromkeys(
        ("aquila", "baichuan", "internlm", "internlm2", "internlm3", "orion", "xverse", "yi"), _LLAMA
    ),
    **dict.fromkeys(
        ("cohere", "ernie4_5", "glm", "glm4", "glm4v_text", "helium", "gemma", "seed_oss"), _LLAMA
    ),
    **dict.fromkeys(("mistral", "ministral", "ministral3", "bitnet"), _LLAMA),
    "minicpm": _TIED,
    "qwen": Family(both_halves=True),
    **dict.fromkeys(("qwen2", "qwen3", "mimo", "qwen3_vl_text"), _QWEN),
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), _QWEN),
    "granitemoehybrid": Family(width="shared_intermediate_size", listed=True),
    "granite_swa": Family(windows=_FIRST_OF_FOUR),
    "cwm": Family(windows=_FIRST_OF_FOUR),
    "olmo3": Family(windows=_every(4)),
    "exaone4": Family(windows=_every(4)),
    "cohere2": Family(windows=replace(_every(4), inclusive=True)),
    "gemma2": Family(windows=_every(2)),
    "vaultgemma": Family(windows=_every(2)),
    "gemma3_text": Family(windows=_every(6)),
    "gemma4_text": Family(
        windows=replace(_every(6), also_full=(-1,)), expert_width=True, dense_too=True, global_heads=True
    ),
    "smollm3": Family(windows=Windows(switch=True, rotary=False)),
    "qwen2_moe": replace(_QWEN_MOE, windows=Windows(full_every=1)),  # vLLM gives its layers no window
    "qwen3_moe": _QWEN_MOE,
    "qwen3_vl_moe_text": _QWEN_MOE,
    **dict.fromkeys(("mixtral", "phimoe", "granitemoe", "granitemoeshared"), _LOCAL),
    "minimax_m2": replace(_LOCAL, gpus_by_experts=True),
    "granitemoe_swa": replace(_LOCAL, windows=_FIRST_OF_FOUR),
    "gpt_oss": replace(_LOCAL, windows=_every(2)),
    "llama4_text": replace(_LOCAL, windows=Windows(rotary=True, chunked=True)),
    **dict.fromkeys(("olmoe", "flex_olmo"), Family(experts="num_experts")),
    "ernie4_5_moe": replace(_EXPERTS, experts="moe_num_experts"),
    **dict.fromkeys(("deepseek", "deepseek_v2", "deepseek_v3", "kimi_k2", "pangu_ultra_moe"), _DEEPSEEK),
    **dict.fromkeys(("axk1", "glm4_moe", "glm4v_moe_text", "glm4_moe_lite", "solar_open"), _DEEPSEEK),
    "dots1": replace(_DEEPSEEK, windows=Windows(from_layer=True)),
    "hy_v3": replace(_EXPERTS, dense_layers=1),
    "mellum": Family(experts="num_experts", expert_width=True, windows=_every(1)),
    "afmoe": Family(
        experts="num_experts",
        expert_width=True,
        windows=Windows(full_every=4, pattern="global_attn_every_n_layers"),
    ),
    "exaone_moe": replace(_EXPERTS, windows=_every(4)),
    "mimo_v2_flash": replace(
        _DEEPSEEK,
        windows=Windows(full_every=6, also_full=(0,)),
        dense_layers=1,
        swa_heads=True,
        gpus_by_experts=True,
    ),
    **dict.fromkeys(
        ("apertus", "arcee", "gpt_neox", "jais2", "nemotron", "persimmon", "phi", "starcoder2"), _GPT
    ),
    **dict.fromkeys(("codegen", "gptj", "bloom", "falcon"), replace(_GPT, four_times=True)),
    **dict.fromkeys(("gpt2", "gpt_bigcode"), replace(_GPT, four_times=True, more_positions=0)),
    "opt": replace(_GPT, more_positions=2),
}
"""Families by `model_type`. Defaults of transformers' classes stand in `family_defaults.json`; a family that ships
its own code names every size in its config.
"""


def defaults_of_family(model_type: object) -> Mapping[str, int | bool]:
    """The defaults of a known family for keys that a config omits."""
    family = FAMILIES.get(str(model_type))
    return (family.defaults if family else {}) or defaults_of(model_type)


def _squeezed(name: str) -> str:
    return name.lower().replace("_", "")


_BY_CLASS = {_squeezed(name.removesuffix("_text")): name for name in FAMILIES}


def family_name(read: ConfigReader) -> str | None:
    """The family that a config names by `model_type`, or else by its class; None if unknown."""
    classes = filter(None, (_DECODER_CLASS.match(str(name)) for name in read.listed("architectures")))
    found = [_BY_CLASS.get(_squeezed(name[1])) for name in classes]
    if None in found:
        return None
    model_type = read.config.get("model_type")
    if model_type is None:
        return found[0] if found else None
    name = str(model_type).lower()
    return name if name in FAMILIES else None


def check_activations(read: ConfigReader, family: Family | None) -> None:
    """Raise ConfigError for an unknown activation, and for one that needs a gate which the family lacks."""
    accepted = _OF_ONE_VALUE | (_OF_TWO_VALUES if family and family.gated else set())
    for key, value in read.config.items():
        named = value and not isinstance(value, bool) and _ACTIVATION_KEY.search(key)
        if named and str(value).lower() not in accepted:
            raise read.not_accepted(key, ", ".join(sorted(accepted)))


def unknown_family(read: ConfigReader) -> ConfigError:
    """The error for a config of an unknown family."""
    known = str(read.config.get("model_type")).lower() in FAMILIES
    return read.not_accepted("architectures" if known else "model_type", ", ".join(FAMILIES))
