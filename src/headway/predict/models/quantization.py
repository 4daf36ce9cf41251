"""Bytes of the weights of a quantised checkpoint, from its config.json or a file beside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.errors import ConfigError
from headway.predict.models.config_reader import parts_of
from headway.statistics import mean

BESIDE = {"hf_quant_config.json": "modelopt", "quantize_config.json": "gptq", "quant_config.json": "awq"}
"""Files beside a config.json in which older checkpoints state their quantisation -> the method."""
_CONFIGS = ("quantization_config", "compression_config")
_KEPT_KEYS = (
    "modules_to_not_convert",
    "ignored_layers",
    "ignore",
    "exclude_modules",
    "llm_int8_skip_modules",
)
"""Keys under which the methods list the modules that keep 16 bits."""
_SCALE_BYTES = 2
_SMALL_SCALE_BYTES = 1
"""Bytes of a scale of four-bit floats."""
_NVFP4_GROUP = 16
_MX_GROUP = 32
_NF4_GROUP = 64

_IN_ONE = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj", "w1", "w3"),
    "down_proj": ("w2",),
}
"""Modules of vLLM, and the checkpoints' names for them or their parts, which vLLM wants quantised alike."""
_DENSE = ("mlp", "feed_forward")
_EXPERT = ("mlp.experts.0", "block_sparse_moe.experts.0", "feed_forward.experts.0")
_SHARED = ("mlp.shared_experts", "mlp.shared_expert", "feed_forward.shared_expert")
"""Places where families have the modules of a feed-forward."""
_NESTED = "language_model."
"""Prefix of the names in a model that has other parts too."""

Bytes = Callable[[Sequence[str]], float]
"""Bytes of a module's weight, including its share of the scales, by the module's possible names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBytes:
    """Mean bytes of a weight in each part of the layers.

    `experts` are the routed ones, or the feed-forward of a dense model; `dense` is what all tokens pass besides: shared
    experts, and the feed-forward of layers without experts. `block` is (columns, rows) of the weights that share one
    scale, if vLLM wants them whole on a GPU; `group` is how many integers of a column do, 0 if all.
    """

    attention: float
    experts: float
    dense: float
    block: tuple[int, int] | None = None
    group: int = 0


def quantization_of(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a model's config states about quantisation, its language model first; None if nothing is quantised."""
    places = reversed(parts_of(config))
    key, found = next(
        ((key, place[key]) for place in places for key in _CONFIGS if place.get(key)), ("", None)
    )
    if found is not None and not isinstance(found, Mapping):
        raise ConfigError(f"{key} is {found!r}; accepted: an object")
    nested = found and found.get("quantization")
    if found and isinstance(nested, Mapping):  # as ModelOpt wrote it, before it followed compressed-tensors
        return {"quant_method": "modelopt", **nested}
    return found


def weight_bytes_of(
    found: Mapping[str, Any] | None,
    wide: int,
    with_experts: Sequence[bool],
    *,
    projections: Mapping[str, int],
    gated: bool,
) -> WeightBytes | None:
    """The bytes of each part's weights; None if nothing is quantised.

    `found` is the result of `quantization_of`; unquantised values have `wide` bytes. `with_experts` tells for each
    layer whether it has any, `projections` are the weights of each module of a layer's attention, `gated` is about its
    feed-forward. Raises ConfigError with a key that is not understood.
    """
    if not found:
        return None
    of_module = _method(found)
    kept = [pattern for key in _KEPT_KEYS for pattern in _patterns(found, key)]
    kept += _kept_by_gptqmodel(found) + _kept_by_auto_round(found)
    only = _chosen_by_gptq(found)

    def each(layer: int, names: Sequence[str]) -> float:
        modules = [f"{_NESTED}model.layers.{layer}.{name}" for name in names]
        left = _means(kept, modules) or (only and not _means(only, modules))
        return wide if left else of_module(modules)

    def usual(places: Sequence[str], modules: Mapping[str, int], layers: Sequence[int]) -> float:
        names = [_names(places, module) for module in modules]
        sizes = list(modules.values())
        return mean(mean([each(layer, module) for module in names], sizes) for layer in layers)

    every = range(len(with_experts))
    chosen = [layer for layer in every if with_experts[layer]]
    plain = [layer for layer in every if not with_experts[layer]]
    feed_forward = {"gate_up_proj": 2 if gated else 1, "down_proj": 1}
    shared = chosen and not plain
    found_bytes = WeightBytes(
        attention=usual(["self_attn"], projections, every),
        experts=usual(_EXPERT if chosen else _DENSE, feed_forward, chosen or every),
        dense=usual(_SHARED if shared else _DENSE, feed_forward, plain or every),
        block=_block(found),
        group=_group(found),
    )
    if min(found_bytes.attention, found_bytes.experts, found_bytes.dense) >= wide:
        method = found.get("quant_method")
        raise _not_understood("quant_method", method, "one that quantises weights of this model's layers")
    return found_bytes


def _names(places: Sequence[str], module: str) -> list[str]:
    """The possible names of a module, the most usual first."""
    names = (*_IN_ONE.get(module, ()), module)
    return [f"{place}.{name}" for place in places for name in names]


def kv_bytes_of(found: Mapping[str, Any] | None, wide: int) -> int:
    """Bytes of a cached value: one if the checkpoint has scales for an eight-bit cache, which vLLM then uses."""
    if not found:
        return wide
    scheme, algorithm = found.get("kv_cache_scheme"), found.get("kv_cache_quant_algo")
    if scheme and (not isinstance(scheme, Mapping) or scheme.get("num_bits") != 8):
        raise _not_understood("kv_cache_scheme", scheme, "an object with num_bits 8")
    if algorithm and str(algorithm).upper() != "FP8":
        raise _not_understood("kv_cache_quant_algo", algorithm, "FP8")
    return 1 if scheme or algorithm else wide


def _method(found: Mapping[str, Any]) -> Bytes:
    name = found.get("quant_method")
    method = _METHODS.get(str(name).lower().replace("compressed_tensors", "compressed-tensors"))
    if method is None:
        raise _not_understood("quant_method", name, ", ".join(_METHODS))
    return method(found)


def _eight_bits(_: Mapping[str, Any]) -> Bytes:
    return lambda _: 1.0


def _integers(found: Mapping[str, Any]) -> Bytes:
    """GPTQ, AWQ and AutoRound: integers, with a scale and a zero for each group."""
    if found.get("lm_head"):
        raise _not_understood("lm_head", found["lm_head"], "false: an LM head of 16 bits")
    if found.get("data_type", "int") != "int":
        raise _not_understood("data_type", found["data_type"], "int")
    bits = found.get("w_bit", found.get("bits"))
    if not isinstance(bits, int) or not 2 <= bits <= 8:
        raise _not_understood("bits", bits, "2 to 8")
    group = found.get("q_group_size", found.get("group_size"))
    if not isinstance(group, int):
        raise _not_understood("group_size", group, "a whole number")
    each = _grouped(bits, group, _SCALE_BYTES + bits / 8)
    return lambda _: each


def _bitsandbytes(found: Mapping[str, Any]) -> Bytes:
    if found.get("load_in_8bit") or found.get("_load_in_8bit"):
        return _eight_bits(found)
    if not (found.get("load_in_4bit") or found.get("_load_in_4bit")):
        raise _not_understood("load_in_4bit", found.get("load_in_4bit"), "true, or load_in_8bit true")
    each = _grouped(4, _NF4_GROUP, 1 if found.get("bnb_4bit_use_double_quant") else 4)
    return lambda _: each


def _modelopt(found: Mapping[str, Any]) -> Bytes:
    algorithm = str(
        found.get("quant_algo") or _MODELOPT_DEFAULT.get(str(found.get("quant_method")).lower())
    ).upper()
    if algorithm not in _MODELOPT_BYTES:
        raise _not_understood("quant_algo", found.get("quant_algo"), ", ".join(_MODELOPT_BYTES))
    return lambda _: _MODELOPT_BYTES[algorithm]


def _mxfp4(_: Mapping[str, Any]) -> Bytes:
    """Experts only: vLLM multiplies everything else in 16 bits."""
    small = _grouped(4, _MX_GROUP, _SMALL_SCALE_BYTES)
    return lambda modules: small if ".experts." in modules[0] else 2.0


def _compressed_tensors(found: Mapping[str, Any]) -> Bytes:
    """Groups of modules, each with its own scheme; modules in no group keep 16 bits."""
    groups = found.get("config_groups")
    if not isinstance(groups, Mapping) or not groups or not all(map(_is_group, groups.values())):
        raise _not_understood("config_groups", groups, "an object of groups with targets and weights")
    sparsity = found.get("sparsity_config")
    if sparsity and (not isinstance(sparsity, Mapping) or sparsity.get("format") != "dense"):
        raise _not_understood("sparsity_config", sparsity, "none, or the format dense")
    schemes = [(_patterns(group, "targets"), group.get("weights")) for group in groups.values()]

    def of_module(modules: Sequence[str]) -> float:
        for targets, weights in schemes:
            if weights and ("Linear" in targets or _means(targets, modules)):
                return _scheme_bytes(weights)
        return 2.0

    return of_module


def _is_group(group: object) -> bool:
    return isinstance(group, Mapping) and isinstance(group.get("weights"), Mapping | None)


def _scheme_bytes(weights: Mapping[str, Any]) -> float:
    bits = weights.get("num_bits")
    if bits not in (4, 8):
        raise _not_understood("config_groups.weights.num_bits", bits, "4, 8")
    if not isinstance(weights.get("group_size"), int | None):
        raise _not_understood("config_groups.weights.group_size", weights["group_size"], "a whole number")
    small = weights.get("type") == "float" and bits == 4
    zero_bytes = 0 if weights.get("symmetric", True) else bits / 8
    return _grouped(
        bits, weights.get("group_size"), (_SMALL_SCALE_BYTES if small else _SCALE_BYTES) + zero_bytes
    )


def _group(found: Mapping[str, Any]) -> int:
    groups = found.get("config_groups") or {}
    schemes = [scheme for group in groups.values() if (scheme := group.get("weights"))] or [found]
    sizes = [
        size
        for scheme in schemes
        for key in ("group_size", "q_group_size")
        if isinstance(size := scheme.get(key), int) and scheme.get("type", "int") == "int"
    ]
    return max([0, *sizes])


def _block(found: Mapping[str, Any]) -> tuple[int, int] | None:
    """The block of eight-bit floats that shares a scale; None if a whole tensor or column does."""
    groups = found.get("config_groups")
    schemes = [group.get("weights") or {} for group in groups.values()] if isinstance(groups, Mapping) else []
    blocks = [found.get("weight_block_size"), *(scheme.get("block_structure") for scheme in schemes)]
    block = next(filter(None, blocks), None)
    if isinstance(block, str):  # older compressed-tensors wrote 128x128
        block = [int(side) for side in block.split("x") if side.isdigit()]
    if block is None:
        return _MODELOPT_BLOCK if str(found.get("quant_algo")).upper() == "FP8_PB_WO" else None
    if (
        isinstance(block, list | tuple)
        and len(block) == 2
        and all(isinstance(n, int) and n > 0 for n in block)
    ):
        return block[0], block[1]
    raise _not_understood("weight_block_size", block, "two whole numbers")


_METHODS: dict[str, Callable[[Mapping[str, Any]], Bytes]] = {
    "fp8": _eight_bits,
    "fbgemm_fp8": _eight_bits,
    **dict.fromkeys(("gptq", "auto_gptq", "gptq_marlin", "awq", "auto_awq", "awq_marlin"), _integers),
    **dict.fromkeys(("auto-round", "inc"), _integers),
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "modelopt_mxfp8": _modelopt,
    **dict.fromkeys(("mxfp4", "gpt_oss_mxfp4"), _mxfp4),
}


def _grouped(bits: int, group: object, group_bytes: float) -> float:
    """Bytes of a weight of this many bits with its share of a group's data; a scale for a column or tensor counts
    as none.
    """
    return bits / 8 + (group_bytes / group if isinstance(group, int) and group > 0 else 0)


_MODELOPT_BYTES = {
    "FP8": 1.0,
    "FP8_PER_CHANNEL_PER_TOKEN": 1.0,
    "FP8_PB_WO": 1.0,
    "MXFP8": _grouped(8, _MX_GROUP, _SMALL_SCALE_BYTES),
    "NVFP4": _grouped(4, _NVFP4_GROUP, _SMALL_SCALE_BYTES),
    "W4A16_NVFP4": _grouped(4, _NVFP4_GROUP, _SMALL_SCALE_BYTES),
}
_MODELOPT_DEFAULT = {"modelopt_mxfp8": "MXFP8"}
"""The meaning of a method whose `quant_algo` is not stated."""
_MODELOPT_BLOCK = (128, 128)


def _patterns(found: Mapping[str, Any], key: str) -> list[str]:
    patterns = found.get(key) or ()
    if not isinstance(patterns, list | tuple) or not all(isinstance(pattern, str) for pattern in patterns):
        raise _not_understood(key, patterns, "a list of names and patterns")
    return list(patterns)


def _chosen_by_gptq(found: Mapping[str, Any]) -> list[str]:
    """GPTQ's own list of the modules that it quantises, in groups of those done together; empty means all."""
    chosen = found.get("modules_in_block_to_quantize") or ()
    groups = [each if isinstance(each, list | tuple) else [each] for each in chosen]
    names = [name for group in groups for name in group]
    if not all(isinstance(name, str) for name in names):
        raise _not_understood("modules_in_block_to_quantize", chosen, "lists of names of modules")
    return names


def _kept_by_gptqmodel(found: Mapping[str, Any]) -> list[str]:
    """GPTQModel's own list: `-:` and a pattern for modules left as they are."""
    patterns = found.get("dynamic") or {}
    if not isinstance(patterns, Mapping) or any(not pattern.startswith("-:") for pattern in patterns):
        raise _not_understood("dynamic", patterns, "an object of patterns that begin with -:")
    return [f"re:{pattern.removeprefix('-:')}" for pattern in patterns]


def _kept_by_auto_round(found: Mapping[str, Any]) -> list[str]:
    """AutoRound's own list: modules and how they differ from the rest, of which 16 bits are understood."""
    modules = found.get("extra_config") or {}
    if not isinstance(modules, Mapping) or any(
        not isinstance(each, Mapping) or each.get("bits", 0) < 16 for each in modules.values()
    ):
        raise _not_understood("extra_config", modules, "an object of modules that keep 16 bits or more")
    return [name if re.fullmatch(r"[\w.-]+", name) else f"re:.*(?:{name})" for name in modules]


def _means(patterns: Sequence[str], modules: Sequence[str]) -> bool:
    return any(_matches(pattern, module) for module in modules for pattern in patterns)


def _matches(pattern: str, module: str) -> bool:
    """Whether a pattern matches the module: `re:` and an expression, or whole parts of its dotted name, `*` for any."""
    if pattern.startswith("re:"):
        return any(_matches_expression(pattern[3:], name) for name in (module, module.removeprefix(_NESTED)))
    parts = re.escape(pattern).replace(r"\*", ".*")
    return re.search(rf"(^|\.){parts}(\.|$)", module) is not None


def _matches_expression(expression: str, name: str) -> bool:
    try:
        return re.match(expression, name) is not None
    except re.error as error:
        raise ConfigError(f"quantization_config has the pattern {expression!r}: {error}") from error


def _not_understood(key: str, value: object, accepted: str) -> ConfigError:
    return ConfigError(f"quantization_config.{key} is {value!r}; accepted: {accepted}")
