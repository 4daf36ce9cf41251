"""The sizes of a model that determine its costs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headway.errors import ConfigError
from headway.predict.models.attention import AttentionLayers, LatentAttention
from headway.predict.models.config_reader import (
    HIDDEN,
    LAYERS,
    ConfigReader,
    context_tokens_of,
    parts_of,
    text_part_of,
)
from headway.predict.models.experts import (
    experts_per_token_of,
    layers_with_experts,
    num_experts_of,
    shared_width,
)
from headway.predict.models.families import (
    FAMILIES,
    Family,
    check_activations,
    defaults_of_family,
    family_name,
    unknown_family,
)
from headway.predict.models.layer_kinds import (
    attention_layers_of,
    heads_of,
    latent_attention_of,
    refuse_other_kinds,
)
from headway.predict.models.quantization import (
    BESIDE,
    WeightBytes,
    kv_bytes_of,
    quantization_of,
    weight_bytes_of,
)

_BYTES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2, "float8_e4m3fn": 1}
_DEFAULT_DTYPE = "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder's sizes, under vLLM's and transformers' names.

    `num_experts` is 0 for a dense model. With experts, `intermediate_size` is the width of one,
    `shared_intermediate_size` that of the shared ones together, and `num_dense_layers` layers have a plain feed-forward
    of `dense_intermediate_size` instead. With latent attention `head_dim` is the mean of a head's query and value, and
    `num_kv_heads` is 1. `uneven` are the kinds of attention layers, those without a window first; empty if all layers
    attend to all tokens with `num_heads` heads and so on. Costs use `attention_layers`. `other_weights` are those of
    all layers besides attention and feed-forward, `looked_up_weights` those of tables besides the embedding.
    `most_tensor_parallel` is the most GPUs over which vLLM splits it, 0 for no limit. `quantized` is None if weights
    are as wide as values; `kv_bytes_per_value` differs from `bytes_per_value` with a quantised cache. `context_tokens`
    is the longest prompt with its answer, 0 if unknown; no cost depends on it.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    gated: bool = True
    tied_embeddings: bool = False
    num_experts: int = 0
    experts_per_token: int = 0
    shared_intermediate_size: int = 0
    num_dense_layers: int = 0
    dense_intermediate_size: int = 0
    latent: LatentAttention | None = None
    uneven: tuple[AttentionLayers, ...] = ()
    other_weights: int = 0
    looked_up_weights: int = 0
    most_tensor_parallel: int = 0
    quantized: WeightBytes | None = None
    bytes_per_value: int = 2
    kv_bytes_per_value: int = 2
    context_tokens: int = 0

    @property
    def attention_layers(self) -> tuple[AttentionLayers, ...]:
        """The kinds of attention layers; a single one if all are alike."""
        return self.uneven or (
            AttentionLayers(
                num_layers=self.num_layers,
                num_heads=self.num_heads,
                num_kv_heads=self.num_kv_heads,
                head_dim=self.head_dim,
                value_dim=self.head_dim,
            ),
        )

    @property
    def windowed(self) -> bool:
        """Whether some layers see, and keep, only the last tokens."""
        return any(kind.window for kind in self.uneven)

    @property
    def query_width(self) -> int:
        """Values of a token's query, over all heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Values of a token's key, over all heads."""
        return self.num_kv_heads * self.head_dim

    @property
    def decode_pairs(self) -> float:
        """Query-key pairs in a prompt that compute as much as one pair of a decode."""
        return self.latent.decode_pairs if self.latent else 1

    @property
    def projections(self) -> dict[str, int]:
        """Weights of each projection over all layers, by the name of its module in vLLM."""
        total: dict[str, int] = {}
        for kind in self.attention_layers:
            hidden = self.hidden_size
            each = (
                self.latent.projections(hidden, self.num_heads) if self.latent else kind.projections(hidden)
            )
            for module, weights in each.items():
                total[module] = total.get(module, 0) + kind.num_layers * weights
        return total

    @property
    def attention_weights(self) -> int:
        """Weights of the projections over all layers."""
        return sum(self.projections.values())

    def kv_head_values(self, kind: AttentionLayers) -> int:
        """Values that a layer of this kind caches for a token and KV head: key and value, or the latent of both."""
        return self.latent.cached if self.latent else kind.head_dim + kind.value_dim

    def gpu_kv_values(self, kind: AttentionLayers, tp: int = 1) -> int:
        """Values of a token that a layer of this kind caches on each of `tp` GPUs, each with at least one KV head."""
        return max(1, kind.num_kv_heads // tp) * self.kv_head_values(kind)

    @property
    def expert_weights(self) -> int:
        """Weights of one feed-forward block, or of one expert."""
        return self._feed_forward_weights(self.intermediate_size)

    @property
    def num_expert_layers(self) -> int:
        """Layers whose feed-forward has `intermediate_size`: in a dense model all of them."""
        return self.num_layers - self.num_dense_layers

    @property
    def active_width(self) -> float:
        """Mean inner width that a token passes in a layer."""
        chosen = max(1, self.experts_per_token) * self.intermediate_size + self.shared_intermediate_size
        inner = self.num_expert_layers * chosen + self.num_dense_layers * self.dense_intermediate_size
        return inner / self.num_layers

    @property
    def active_weights(self) -> int:
        """Weights of all layers with which a token is multiplied."""
        chosen = self.num_expert_layers * max(1, self.experts_per_token) * self.expert_weights
        return self._weights_beside_experts + chosen

    @property
    def num_weights(self) -> int:
        """All weights except biases and norms, which are well under 0.1 % of them."""
        experts = self.num_expert_layers * max(1, self.num_experts) * self.expert_weights
        return self._weights_beside_experts + experts + self._table_weights

    @property
    def bytes_per_weight(self) -> WeightBytes:
        """Bytes of a weight in each part of the layers."""
        wide = self.bytes_per_value
        return self.quantized or WeightBytes(attention=wide, experts=wide, dense=wide)

    @property
    def fixed_bytes(self) -> float:
        """Bytes of the layers' weights that every step reads, without experts or a dense feed-forward."""
        each = self.bytes_per_weight
        attention = self.attention_weights * each.attention
        beside = self._router_weights + self.other_weights
        return attention + beside * self.bytes_per_value + self._shared_weights * each.dense

    @property
    def expert_bytes(self) -> float:
        """Bytes of all layers' experts, or of a dense feed-forward."""
        experts = self.num_expert_layers * max(1, self.num_experts) * self.expert_weights
        return experts * self.bytes_per_weight.experts

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights on all GPUs of an instance. Tables and router are never quantised."""
        return round(self.fixed_bytes + self.expert_bytes + self._table_weights * self.bytes_per_value)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache that one more token takes on all GPUs of an instance, in the layers that keep all tokens.

        If all layers have a window, what a token inside the window takes.
        """
        return self.gpu_kv_bytes_per_token(1)

    def gpu_kv_bytes_per_token(self, tp: int) -> int:
        """The part of `kv_bytes_per_token` on each of `tp` GPUs, at least one KV head of a layer."""
        growing = [kind for kind in self.attention_layers if not kind.window] or self.attention_layers
        values = sum(kind.num_layers * self.gpu_kv_values(kind, tp) for kind in growing)
        return values * self.kv_bytes_per_value

    def _feed_forward_weights(self, width: int) -> int:
        return (3 if self.gated else 2) * self.hidden_size * width

    @property
    def _weights_beside_experts(self) -> int:
        return self.attention_weights + self._router_weights + self.other_weights + self._shared_weights

    @property
    def _router_weights(self) -> int:
        return self.num_expert_layers * self.hidden_size * self.num_experts

    @property
    def _shared_weights(self) -> int:
        """Weights of all layers that all tokens pass besides the experts, or in place of them."""
        beside = self.num_expert_layers * self._feed_forward_weights(self.shared_intermediate_size)
        return beside + self.num_dense_layers * self._feed_forward_weights(self.dense_intermediate_size)

    @property
    def _table_weights(self) -> int:
        tables = (1 if self.tied_embeddings else 2) * self.vocab_size * self.hidden_size
        return tables + self.looked_up_weights


def model_shape_of(config: Mapping[str, Any], name: str = "") -> ModelShape:
    """The shape in a `config.json` as transformers writes it, for a family in `families.FAMILIES`.

    Of a model with other parts (vision), the language model's shape. Absent keys have the values of the family's class.
    Raises ConfigError, with the key that is missing or unknown, or that makes the model another kind.
    """
    quantization = quantization_of(config)
    outer, config = config, _language_part(config)
    name = name or str(config.get("_name_or_path", "")) or "model"
    family, read, latent = _kind(ConfigReader(config, name))
    layers = read.needed(*LAYERS)
    hidden = read.needed(*HIDDEN)
    experts = _experts(read, family)
    with_experts = layers_with_experts(read, layers, family.dense_layers) if experts else [False] * layers
    dense = with_experts.count(False) if experts else 0
    width = _expert_width(read, family) if experts else _inner(read, family)
    dtype_bytes = _dtype_bytes(config)
    if quantization:
        dtype_bytes = min(dtype_bytes, 2)  # vLLM serves quantised weights beside 16 bits
    shape = ModelShape(
        name=read.name,
        num_layers=layers,
        hidden_size=hidden,
        **_attention(read, family, latent, layers, hidden),
        intermediate_size=width,
        vocab_size=read.needed("vocab_size"),
        gated=family.gated,
        tied_embeddings=_tied(read, outer),
        num_experts=experts,
        experts_per_token=experts_per_token_of(read, experts) if experts else 0,
        shared_intermediate_size=_shared(read, family, width) if experts else 0,
        num_dense_layers=dense,
        dense_intermediate_size=read.needed("intermediate_size_mlp", "intermediate_size") if dense else 0,
        latent=latent,
        most_tensor_parallel=experts if family.gpus_by_experts else 0,
        **_weights_beside(read, family, layers, hidden),
        bytes_per_value=dtype_bytes,
        kv_bytes_per_value=kv_bytes_of(quantization, dtype_bytes),
        context_tokens=context_tokens_of(read),
    )
    quantized = weight_bytes_of(
        quantization, dtype_bytes, with_experts, projections=shape.projections, gated=shape.gated
    )
    return replace(shape, quantized=quantized)


def _language_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of the language model, with its model type if the part does not state one."""
    part = parts_of(config)[-1]
    if part is config or "model_type" in part:
        return part
    model_type = text_part_of(config.get("model_type"))
    return {"model_type": model_type, **part} if model_type else part


def _kind(read: ConfigReader) -> tuple[Family, ConfigReader, LatentAttention | None]:
    """The config's family, a reader with its defaults, and its latent attention.

    Raises ConfigError for anything unknown; the config's own keys are named before the family's.
    """
    name = family_name(read)
    family = FAMILIES[name] if name else None
    read = ConfigReader(read.config, read.name, defaults_of_family(name))
    refuse_other_kinds(read, family)
    check_activations(read, family)
    latent = latent_attention_of(read)
    if family is None:
        raise unknown_family(read)
    return family, read, latent


def _attention(
    read: ConfigReader, family: Family, latent: LatentAttention | None, layers: int, hidden: int
) -> dict[str, Any]:
    """The fields of a shape that describe its attention."""
    if latent:
        heads = read.needed("num_attention_heads", "n_head", "n_heads")
        return {"num_heads": heads, "num_kv_heads": 1, "head_dim": latent.mean_head_dim}
    told = heads_of(read, family, hidden)
    kinds = attention_layers_of(read, family, layers, told)
    alike = len(kinds) == 1 and not kinds[0].window and told.value_width == told.width
    return {
        "num_heads": told.query,
        "num_kv_heads": told.kv,
        "head_dim": told.width,
        "uneven": () if alike and kinds[0].num_heads == told.query else kinds,
    }


def _weights_beside(read: ConfigReader, family: Family, layers: int, hidden: int) -> dict[str, Any]:
    """Weights outside of attention, feed-forward and word tables: learned positions, and Gemma's inputs of each
    layer.
    """
    if read.known("word_embed_proj_dim") not in (0, hidden):
        raise read.refuse("word_embed_proj_dim")
    looked_up = other = 0
    if family.more_positions is not None:
        positions = read.known("n_positions", "max_position_embeddings")
        looked_up = (positions + family.more_positions) * hidden if positions else 0
    if family.global_heads and (width := read.known("hidden_size_per_layer_input")):
        looked_up += read.needed("vocab_size_per_layer_input") * layers * width
        other = 3 * layers * width * hidden
    return {"looked_up_weights": looked_up, "other_weights": other}


def _experts(read: ConfigReader, family: Family) -> int:
    if read.config.get("enable_moe_block") is False:
        return 0
    experts = num_experts_of(read)
    if not experts and family.experts and read.config.get(family.experts) is None:
        return read.needed(family.experts)
    return experts


def _expert_width(read: ConfigReader, family: Family) -> int:
    if family.expert_width:
        return read.needed("moe_intermediate_size")
    return read.known("moe_intermediate_size") or read.needed("intermediate_size")


def _shared(read: ConfigReader, family: Family, expert_width: int) -> int:
    return read.needed("intermediate_size") if family.dense_too else shared_width(read, expert_width)


def _inner(read: ConfigReader, family: Family) -> int:
    keys = (family.width,) if family.width else ("ffn_dim", "n_inner", "intermediate_size", "ffn_hidden_size")
    if family.four_times:
        return read.known(*keys) or 4 * read.needed(*HIDDEN)
    return read.needed(*keys) // (2 if family.both_halves else 1)


def _tied(read: ConfigReader, outer: Mapping[str, Any]) -> bool:
    """Whether the LM head is the embedding table, by the language model's config, the whole one, or the family."""
    for config in (read.config, outer):
        told = config.get("tie_word_embeddings")
        if isinstance(told, bool):
            return told
        if told is not None:
            raise ConfigReader(config, read.name).not_accepted("tie_word_embeddings", "true or false")
    return bool(read.defaults.get("tie_word_embeddings"))


def _dtype_bytes(config: Mapping[str, Any]) -> int:
    dtype = str(config.get("torch_dtype") or config.get("dtype") or _DEFAULT_DTYPE).removeprefix("torch.")
    if dtype not in _BYTES:
        raise ConfigError(f"dtype {dtype!r} is not known; accepted: {', '.join(_BYTES)}")
    return _BYTES[dtype]


FILES = ("config.json", *BESIDE)
"""The files of a model's directory that tell its shape."""


def read_model_shape(directory: Path) -> ModelShape:
    """The shape of the model in a directory, from its config.json and the quantisation files beside it.

    Raises ConfigError without a readable config.json.
    """
    config = _object(directory / "config.json")
    if quantization_of(config) is None:
        for file, method in BESIDE.items():
            if (directory / file).exists():
                found = {"quant_method": method, **_object(directory / file)}
                return model_shape_of({**config, "quantization_config": found}, directory.name)
    return model_shape_of(config, directory.name)


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds {type(found).__name__}, not an object")
    return found
