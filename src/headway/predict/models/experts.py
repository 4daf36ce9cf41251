"""Experts of a model, read from its config.json: how many, how wide, and in which layers."""

from __future__ import annotations

from headway.errors import ConfigError
from headway.predict.models.config_reader import ConfigReader

_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "top_k_experts", "moe_k")
_SHARED_COUNTS = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_SHARED_WIDTHS = ("shared_expert_intermediate_size", "shared_intermediate_size")


def num_experts_of(read: ConfigReader) -> int:
    """Experts in a layer; 0 for a dense model, including one with a single expert.

    Raises ConfigError if they stand under unknown names.
    """
    experts = read.known(*_COUNTS)
    for key, value in read.config.items():
        nested = value if isinstance(value, dict) else {key: value}
        if not experts and any(_counts_experts(str(inner), number) for inner, number in nested.items()):
            raise read.refuse(key)
    return experts if experts > 1 else 0


def experts_per_token_of(read: ConfigReader, experts: int) -> int:
    """Experts that a token passes in a layer. Raises ConfigError for more than there are."""
    chosen = read.needed(*_CHOSEN)
    if chosen > experts:
        raise ConfigError(
            f"the config of {read.name!r} has {chosen} experts a token; accepted: at most the {experts} that it has"
        )
    return chosen


def _counts_experts(key: str, value: object) -> bool:
    return "num_experts" in key and key not in _CHOSEN and isinstance(value, int) and value > 1


def layers_with_experts(read: ConfigReader, num_layers: int, dense_layers: int = 0) -> list[bool]:
    """For each layer whether it has experts: all but the first `dense_layers`.

    Keys of DeepSeek, Qwen, Llama 4, GLM and ERNIE may say otherwise.
    """
    if kinds := read.by_layer("mlp_layer_types", num_layers):
        if set(kinds) - {"sparse", "dense"}:
            raise read.not_accepted("mlp_layer_types", "sparse and dense")
        return [kind == "sparse" for kind in kinds]
    if named := read.listed("moe_layers"):
        return [layer in named for layer in range(num_layers)]
    if read.listed("moe_layer_freq"):
        return list(map(bool, read.by_layer("moe_layer_freq", num_layers)))
    return [_has_experts(read, layer, dense_layers) for layer in range(num_layers)]


def shared_width(read: ConfigReader, expert_width: int) -> int:
    """Total width of a layer's shared experts, which every token passes; 0 without."""
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


def _has_experts(read: ConfigReader, layer: int, dense_layers: int) -> bool:
    keys = "first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"
    first = dense_layers if read.get(*keys) is None else read.known(*keys)
    ends = read.get("moe_layer_end_index") not in (None, -1)
    behind = ends and layer > read.known("moe_layer_end_index")
    if layer < first or behind or layer in read.listed("mlp_only_layers"):
        return False
    every = read.known("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval") or 1
    return (layer + 1) % every == 0 and layer % (read.known("moe_layer_freq") or 1) == 0
