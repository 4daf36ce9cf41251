"""Layers that no shape describes, known by keys of a model's config.json."""

from __future__ import annotations

import re
from collections.abc import Mapping

from headway.predict.config_reader import LAYERS, ConfigReader
from headway.predict.context_tokens import context_tokens_of

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
