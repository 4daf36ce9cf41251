"""Kinds of attention layers in a model's config.json, and the keys of kinds that no shape describes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headway.errors import ConfigError
from headway.predict.models.attention import AttentionLayers, LatentAttention
from headway.predict.models.config_reader import LAYERS, ConfigReader, context_tokens_of
from headway.predict.models.families import Family

_CACHE_LATENTS = ("axk1", "deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "pangu_ultra_moe")
"""Model types whose latents vLLM 0.32 caches directly; for others it caches the heads."""
_STATES = re.compile(r"mamba_|ssm_|lru_|conv_|rwkv|linear_(num|key|value|conv)|.*linear_att")
"""Keys of layers that keep a state in place of KV."""
_OTHER_KINDS = re.compile(
    # Layers that differ from each other.
    r".*per_layer|.*hybrid|.*_pattern$|.*blocks?_(type|config)s?$|.*att(entio)?n_(types?|type_list|layers|idxs?)$"
    r"|attn_layer_(period|offset|ind)|.*full_att|.*attn_every|.*kv_shared|(num_)?global_|swa_|(use_)?cla(_|$)"
    # Layers that read selected keys, or chunks of them.
    r"|.*sparse_(att|config|block|mode)|sparse_|index_|compress_|.*att(entio)?n_chunk_size|dual_chunk"
    # Keys that serve as values, a second feed-forward, tokens that see later ones, an encoder.
    r"|attention_k_eq_v|use_double_wide|use_bidirectional|is_encoder_decoder|add_cross_attention|cross_attention"
)
_WINDOWS = ("sliding_window", "sliding_window_size")
_WINDOW = re.compile(r"(?!use_)(.*sliding_|local_|attention_|attn_)?window(_size)?$")
_FULL, _SLIDING, _CHUNKED = {"attention", "full_attention"}, "sliding_attention", "chunked_attention"
_READ_ELSEWHERE = {"layer_types", "mlp_layer_types", "mlp_only_layers", "moe_layer_freq", "moe_layers"}
_READ_IF_GLOBAL = {
    *("global_head_dim", "num_global_key_value_heads", "attention_k_eq_v"),
    *("hidden_size_per_layer_input", "vocab_size_per_layer_input"),
}
_READ_IF_SWA = {
    *("hybrid_layer_pattern", "swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim"),
    *("swa_v_head_dim", "swa_rope_theta", "attention_chunk_size"),
}
_SAVED_PATTERN = "_sliding_window_pattern"
"""A note of its pattern that a class saves and does not read again."""
_PATTERNS = ("sliding_window_pattern", "global_attn_every_n_layers", _SAVED_PATTERN)
_HARMLESS_LISTS = re.compile(r"architectures|no_rope_layers|layer_rope_theta|.*token(_id)?s?$|.*languages")
_HARMLESS_OBJECTS = re.compile(
    r"rope_|quantization_config|compression_config|.*label|auto_map|task_specific|generation"
    r"|.*(vision|visual|image|video|audio|speech)|transformers\.js_config"
)
_HARMLESS_NUMBERS = re.compile(r"layernorm_.*_beta|swa_rope_theta")
_EVERY_LAYER_FULL = {"attn_type_list", "full_attn_mod"}
"""Keys that say with 1, once or for each layer, that all layers attend to all keys."""


class HeadSizes(NamedTuple):
    """A layer's heads: the number for queries, the number for keys and values, and their widths."""

    query: int
    kv: int
    width: int
    value_width: int


class _Window(NamedTuple):
    """What a layer sees: this many last tokens, or all if that is 0."""

    tokens: int = 0
    chunked: bool = False


_ALL = _Window()


def attention_layers_of(
    read: ConfigReader, family: Family, layers: int, heads: HeadSizes
) -> tuple[AttentionLayers, ...]:
    """The kinds of layers of a model with these heads; those without a window first, else in order.

    Raises ConfigError, with the key, for an impossible size, or one that vLLM refuses.
    """
    windows = _windows(read, family, layers)
    kinds = Counter(zip(windows, _heads_by_layer(read, family, heads, windows), strict=True))
    found = [
        AttentionLayers(
            num_layers=number,
            num_heads=each.query,
            num_kv_heads=each.kv,
            head_dim=each.width,
            value_dim=each.value_width,
            window=window.tokens,
            chunked=window.chunked,
        )
        for (window, each), number in kinds.items()
    ]
    return tuple(sorted(found, key=lambda kind: kind.window > 0))


# ---- tokens that a layer sees ----------------------------------------------------------------------


def _windows(read: ConfigReader, family: Family, layers: int) -> list[_Window]:
    """The window of each layer; one that covers the longest context counts as none."""
    key = "attention_chunk_size" if family.windows.chunked else next(filter(read.known, _WINDOWS), "")
    tokens = read.known(key) if key else 0
    windowed = _windowed(read, family, layers, bool(tokens))
    context = context_tokens_of(read)
    if not tokens or not any(windowed) or 0 < context <= tokens:
        return [_ALL] * layers
    window = _Window(tokens + family.windows.inclusive, family.windows.chunked)
    return [window if each else _ALL for each in windowed]


def _windowed(read: ConfigReader, family: Family, layers: int, known: bool) -> list[bool]:
    """Whether each layer has a window, by an explicit list, else by the family's rule."""
    rule = family.windows
    windowed = _CHUNKED if rule.chunked else _SLIDING
    if kinds := read.by_layer("layer_types", layers):
        told = any(key in read.config for key in _WINDOWS)
        if set(kinds) - _FULL - {windowed} or (windowed in kinds and not known and not told):
            raise read.refuse("layer_types")
        listed = [kind == windowed for kind in kinds]
        return _if_accepted(read, listed) if rule.from_layer else listed
    if family.swa_heads and (pattern := read.by_layer("hybrid_layer_pattern", layers)):
        return [each == 1 for each in pattern]
    switch = read.config.get("use_sliding_window")
    if switch and not known:
        raise read.refuse("use_sliding_window")
    if rule.switch and not read.get("use_sliding_window"):
        return [False] * layers
    if switch is False and not rule.switch and known:
        raise read.not_accepted("use_sliding_window", "what this family's class reads: no window at all")
    return _by_rule(read, family, layers)


def _by_rule(read: ConfigReader, family: Family, layers: int) -> list[bool]:
    rule = family.windows
    if rule.rotary is not None:
        every = read.known("no_rope_layer_interval")
        rotary = read.by_layer("no_rope_layers", layers) or [(layer + 1) % every for layer in range(layers)]
        return [bool(each) is rule.rotary for each in rotary]
    if rule.full_every:
        every = (rule.pattern and read.known(rule.pattern)) or rule.full_every
        full = {layer for layer in range(layers) if (layer if rule.full_first else layer + 1) % every == 0}
        full |= {layer % layers for layer in rule.also_full}
        return [layer not in full for layer in range(layers)]
    if rule.from_layer:
        first = read.known("max_window_layers")
        return _if_accepted(read, [layer >= first for layer in range(layers)])
    return [True] * layers


def _if_accepted(read: ConfigReader, windowed: list[bool]) -> list[bool]:
    if len(set(windowed)) > 1:
        key = "layer_types" if read.listed("layer_types") else "max_window_layers"
        raise ConfigError(
            f"the config of {read.name!r} has {key} = {read.get(key)!r}, and use_sliding_window: a sliding window in "
            f"{sum(windowed)} of {len(windowed)} layers, which vLLM 0.32 refuses for this family; accepted: all or none"
        )
    return windowed


# ---- heads of a layer ------------------------------------------------------------------------------


def heads_of(read: ConfigReader, family: Family, hidden: int) -> HeadSizes:
    """The heads of all layers without settings of their own. Raises ConfigError as above."""
    query = read.needed("num_attention_heads", "n_head", "n_heads")
    width = _head_dim(read, hidden, query)
    value = read.known("v_head_dim") or width
    if value != width and not family.swa_heads:
        raise read.refuse("v_head_dim")
    return HeadSizes(query, _kv_heads(read, query), width, value)


def _heads_by_layer(
    read: ConfigReader, family: Family, heads: HeadSizes, windows: Sequence[_Window]
) -> list[HeadSizes]:
    """Each layer's heads: the common ones, or by the keys of families whose layers differ."""
    if (told := read.config.get("per_layer_config")) is not None:
        return _told_by_layer(read, heads, told, len(windows))
    full = sliding = heads
    if family.global_heads:
        kv = read.known("num_global_key_value_heads") if read.get("attention_k_eq_v") else 0
        width = read.known("global_head_dim") or _GLOBAL_HEAD_DIM
        full = heads._replace(kv=kv or heads.kv, width=width, value_width=width)
    if family.swa_heads:
        sliding = HeadSizes(
            query=read.known("swa_num_attention_heads") or heads.query,
            kv=read.known("swa_num_key_value_heads") or 2 * heads.kv,
            width=read.known("swa_head_dim") or heads.width,
            value_width=read.known("swa_v_head_dim") or heads.value_width,
        )
    return [sliding if window.tokens else full for window in windows]


_GLOBAL_HEAD_DIM = 512
"""Head width of a Gemma 4 whose config does not state it."""
_TOLD_BY_LAYER = {"num_attention_heads": "query", "num_key_value_heads": "kv", "head_dim": "width"}


def _told_by_layer(read: ConfigReader, heads: HeadSizes, told: object, layers: int) -> list[HeadSizes]:
    """Apply `per_layer_config`, in which transformers 5 stores differences by layer index."""
    found = [heads] * layers
    if not isinstance(told, Mapping):
        raise read.refuse("per_layer_config")
    for index, keys in told.items():
        known = isinstance(keys, Mapping) and not set(keys) - set(_TOLD_BY_LAYER)
        if not known or not str(index).isdigit() or int(index) >= layers:
            raise read.refuse("per_layer_config")
        if not all(isinstance(size, int) and size > 0 for size in keys.values()):
            raise read.refuse("per_layer_config")
        each = heads._replace(**{_TOLD_BY_LAYER[key]: size for key, size in keys.items()})
        found[int(index)] = each._replace(value_width=each.width)
    return found


def _kv_heads(read: ConfigReader, heads: int) -> int:
    if read.get("multi_query") and not read.get("new_decoder_architecture"):
        return 1
    keys = "num_key_value_heads", "num_kv_heads", "n_head_kv"
    for key in keys:
        if read.config.get(key) == 0:
            raise read.not_accepted(key, "a whole number, 1 or more")
    found = read.known(*keys) or heads
    if heads % found:
        raise ConfigError(
            f"the config of {read.name!r} has {heads} heads for {found} KV heads (num_key_value_heads); accepted: a "
            "multiple of them"
        )
    return found


def _head_dim(read: ConfigReader, hidden: int, heads: int) -> int:
    """A head's width: the stated one, the family's, or a head's share of the hidden size."""
    found = read.known("head_dim", "kv_channels")
    if not found and heads > hidden:
        raise ConfigError(
            f"the config of {read.name!r} has {heads} heads for a hidden size of {hidden}; accepted: 1 to {hidden}"
        )
    return found or hidden // heads


def latent_attention_of(read: ConfigReader) -> LatentAttention | None:
    """A config's latent attention; None for attention by heads. Raises ConfigError if vLLM caches something else."""
    if not read.known("kv_lora_rank"):
        return None
    if read.config.get("model_type") not in _CACHE_LATENTS:
        raise read.refuse("kv_lora_rank")
    return LatentAttention(
        q_lora_rank=read.known("q_lora_rank"),
        kv_lora_rank=read.needed("kv_lora_rank"),
        qk_nope_head_dim=read.needed("qk_nope_head_dim"),
        qk_rope_head_dim=read.needed("qk_rope_head_dim"),
        v_head_dim=read.needed("v_head_dim"),
    )


# ---- refusals --------------------------------------------------------------------------------------


def refuse_other_kinds(read: ConfigReader, family: Family | None) -> None:
    """Raise ConfigError, with the key, for layers that no shape describes.

    These keep a state, read selected keys only, or differ in unknown ways. In an unknown family any layers that differ,
    or have a window, are refused.
    """
    layers = read.known(*LAYERS)
    kinds = set(map(str, read.by_layer("layer_types", layers)))
    if kinds - _FULL - {_SLIDING, _CHUNKED} or (family is None and kinds - _FULL):
        raise read.refuse("layer_types")
    if family is not None and family.listed and not kinds:
        raise ConfigError(
            f"the config of {read.name!r} has no 'layer_types'; accepted: a list of attention layers"
        )
    for key, value in read.config.items():
        if (
            value
            and _WINDOW.match(key)
            and (family is None or key not in _WINDOWS)
            and not _holds_context(read, key)
        ):
            raise read.refuse(key)
        # If each layer's kind is stated, there may also be sizes of kinds that are not used.
        other = _OTHER_KINDS.match(key) or (not kinds and _STATES.match(key))
        if value and (other or _is_not_read(key, value, layers)) and not _is_harmless(read, key, family):
            raise read.refuse(key)


def _holds_context(read: ConfigReader, key: str) -> bool:
    window = read.config[key]
    return isinstance(window, int) and 0 < context_tokens_of(read) <= window


def _is_harmless(read: ConfigReader, key: str, family: Family | None) -> bool:
    """Whether a key is read elsewhere, or has a value that changes nothing."""
    if key in _EVERY_LAYER_FULL:
        return set(read.listed(key) or [read.config[key]]) == {1}
    if key == "cla_share_factor":
        return not read.config.get("use_cla")
    if key in _READ_ELSEWHERE or _HARMLESS_NUMBERS.match(key):
        return True
    return family is not None and _is_read(read, key, family)


def _is_read(read: ConfigReader, key: str, family: Family) -> bool:
    """Whether a key is one of those by which this family's layers differ."""
    if key in _PATTERNS:
        noted = key == _SAVED_PATTERN and read.config[key] == family.windows.full_every
        return noted or key == family.windows.pattern or bool(read.listed("layer_types"))
    if key == "use_bidirectional_attention":
        return bool(read.config[key] == "vision")
    return (
        key == "per_layer_config"
        or (family.windows.chunked and key == "attention_chunk_size")
        or (family.global_heads and key in _READ_IF_GLOBAL)
        or (family.swa_heads and key in _READ_IF_SWA)
    )


def _is_not_read(key: str, value: object, layers: int) -> bool:
    """Whether the value is a list with an entry for each layer, or an object, on which no cost here depends."""
    if isinstance(value, list | tuple):
        return 1 < len(value) == layers and not _HARMLESS_LISTS.match(key)
    return isinstance(value, Mapping) and not _HARMLESS_OBJECTS.match(key)
