"""Numbers of GPUs over which a model can be split: refuses what vLLM 0.32 refuses, with its reason."""

from __future__ import annotations

from collections.abc import Mapping

from headway.errors import ConfigError
from headway.predict.models.model_shape import ModelShape

_VOCABULARY_PADDING = 64
"""vLLM pads word tables to a multiple of this."""


def check_parallelism(model: ModelShape, tp: int, stages: int) -> None:
    """Raise ConfigError for tensor parallelism, or pipeline stages, that vLLM refuses for the model."""
    _check_heads(model, tp)
    _check_widths(model, tp)
    _check_blocks(model, tp)
    if not 1 <= stages <= model.num_layers:
        raise ConfigError(
            f"{stages} pipeline stages do not share the {model.num_layers} layers of {model.name}; accepted: 1 to "
            f"{model.num_layers}"
        )


def _check_heads(model: ModelShape, tp: int) -> None:
    for kind in model.attention_layers:
        if tp < 1 or kind.num_heads % tp:
            raise ConfigError(
                f"tensor parallelism {tp} does not divide the {kind.num_heads} heads of {model.name}"
            )
        if max(tp, kind.num_kv_heads) % min(tp, kind.num_kv_heads):
            raise ConfigError(
                f"tensor parallelism {tp} does not share the {kind.num_kv_heads} KV heads of {model.name} evenly, as "
                "vLLM asks; accepted: what divides them, or a multiple of them"
            )


def _check_widths(model: ModelShape, tp: int) -> None:
    if 0 < model.most_tensor_parallel < tp:
        raise ConfigError(
            f"tensor parallelism {tp} is more than the {model.num_experts} experts (num_experts) of {model.name}, "
            f"which vLLM refuses for its family; accepted: up to {model.most_tensor_parallel}"
        )
    padded = -(-model.vocab_size // _VOCABULARY_PADDING) * _VOCABULARY_PADDING
    widths = {"vocab_size, padded": padded}
    expert = "moe_intermediate_size" if model.num_experts else "intermediate_size"
    widths[expert] = model.intermediate_size
    widths["width of the shared experts"] = model.shared_intermediate_size
    widths["intermediate_size"] = model.dense_intermediate_size or widths.get("intermediate_size", 0)
    for what, width in widths.items():
        if width % tp:
            raise ConfigError(
                f"tensor parallelism {tp} does not divide the {width} ({what}) of {model.name}, as vLLM asks; "
                "accepted: what divides it"
            )


def _check_blocks(model: ModelShape, tp: int) -> None:
    """Raise ConfigError if a GPU's share of a quantised weight is not a whole number of scale groups."""
    quantized = model.quantized
    for side in (quantized and quantized.block) or ():
        _check_shares(
            model, tp, _split_sizes(model, tp), side, "block that shares a scale (weight_block_size)"
        )
    if quantized and quantized.group:
        depths = _split_depths(model, tp)
        _check_shares(model, tp, depths, quantized.group, "group that shares a scale (group_size)")


def _split_sizes(model: ModelShape, tp: int) -> dict[str, float]:
    """The share of one of `tp` GPUs in each divided size, for the parts with quantised weights."""
    each, wide = model.bytes_per_weight, model.bytes_per_value
    sizes: dict[str, float] = {}
    if each.attention < wide and model.latent:
        *columns, (_, depth) = model.latent.shared_products(model.hidden_size, model.num_heads)
        sizes |= {f"the {width} columns of a projection": width / tp for width, _ in columns}
        sizes[f"the {depth} values of all heads"] = depth / tp
    elif each.attention < wide:
        for kind in model.attention_layers:
            query, key = kind.num_heads * kind.head_dim, kind.num_kv_heads * kind.head_dim
            sizes[f"the {query} values of all heads"] = query / tp
            sizes[f"the {key} values of all KV heads"] = max(kind.head_dim, key / tp)
    if each.experts < wide:
        sizes[f"the width of {model.intermediate_size}"] = model.intermediate_size / tp
    return sizes | _dense_shares(model, tp)


def _split_depths(model: ModelShape, tp: int) -> dict[str, float]:
    """The share of one of `tp` GPUs in each divided depth, for the parts with quantised weights.

    Without experts: vLLM splits a group of theirs that spans two GPUs.
    """
    each, wide = model.bytes_per_weight, model.bytes_per_value
    depths: dict[str, float] = {}
    if each.attention < wide:
        for kind in model.attention_layers:
            values = kind.num_heads * (model.latent.v_head_dim if model.latent else kind.value_dim)
            depths[f"the {values} values of all heads"] = values / tp
    if not model.num_experts and each.experts < wide:
        depths[f"the width of {model.intermediate_size}"] = model.intermediate_size / tp
    return depths | _dense_shares(model, tp)


def _dense_shares(model: ModelShape, tp: int) -> dict[str, float]:
    """The widths, if quantised, that all tokens pass besides experts or in place of them."""
    if not model.num_experts or model.bytes_per_weight.dense >= model.bytes_per_value:
        return {}
    widths = model.shared_intermediate_size, model.dense_intermediate_size
    return {f"the width of {width}": width / tp for width in widths if width}


def _check_shares(model: ModelShape, tp: int, sizes: Mapping[str, float], side: int, sharing: str) -> None:
    for what, size in sizes.items():
        if size % side:
            raise ConfigError(
                f"tensor parallelism {tp} leaves a GPU {size:g} of {what} of {model.name}, which is no multiple of "
                f"{side}, the {sharing}; accepted: one that leaves a multiple"
            )
