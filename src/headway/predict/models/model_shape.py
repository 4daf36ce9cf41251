"""What of a model its cost depends on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headway.errors import ConfigError
from headway.predict.models.config_reader import HIDDEN, LAYERS, ConfigReader, context_tokens_of, parts_of
from headway.predict.models.layers import (
    Family,
    LatentAttention,
    check_activations,
    experts_per_token_of,
    known_family,
    latent_attention_of,
    layers_with_experts,
    num_experts_of,
    refuse_other_kinds,
    shared_width,
    unknown_family,
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
    """A decoder's sizes, in vLLM's and transformers' words.

    `num_experts` is 0 for a dense model. Where there are several, `intermediate_size` is the width of one expert,
    `shared_intermediate_size` of all that every token passes beside them, and `num_dense_layers` layers have a plain
    feed-forward of `dense_intermediate_size` in their place. Of latent attention `head_dim` is the mean of a head's
    query and value, and `num_kv_heads` 1. `quantized` is None where weights are as wide as values;
    `kv_bytes_per_value` differs from `bytes_per_value` under a quantised cache. `context_tokens` is how long
    prompt and answer may be together, 0 if that is not known; no cost follows from it.
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
    quantized: WeightBytes | None = None
    bytes_per_value: int = 2
    kv_bytes_per_value: int = 2
    context_tokens: int = 0

    @property
    def query_width(self) -> int:
        """Values of a token's query, all heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Values of a token's key, all heads; its value has as many."""
        return self.num_kv_heads * self.head_dim

    @property
    def kv_head_values(self) -> int:
        """Values a layer caches of a token for one KV head: key and value, or the latent they are made from."""
        return self.latent.cached if self.latent else 2 * self.head_dim

    @property
    def decode_pairs(self) -> float:
        """How many pairs of query and key in a prompt compute as much as one of a single token's."""
        return self.latent.decode_pairs if self.latent else 1

    @property
    def projections(self) -> dict[str, int]:
        """Weights of each of a layer's projections, by the name of its module in vLLM."""
        if self.latent:
            return self.latent.projections(self.hidden_size, self.num_heads)
        out = self.hidden_size * self.query_width
        return {"qkv_proj": out + 2 * self.hidden_size * self.kv_width, "o_proj": out}

    @property
    def attention_weights(self) -> int:
        """Weights of one layer's projections."""
        return sum(self.projections.values())

    @property
    def expert_weights(self) -> int:
        """Weights of one feed-forward block, or of one expert."""
        return self._feed_forward_weights(self.intermediate_size)

    @property
    def num_expert_layers(self) -> int:
        """Layers whose feed-forward is of `intermediate_size`: of a dense model all of them."""
        return self.num_layers - self.num_dense_layers

    @property
    def active_width(self) -> float:
        """Inner width that a token passes in a layer, in the mean."""
        chosen = max(1, self.experts_per_token) * self.intermediate_size + self.shared_intermediate_size
        inner = self.num_expert_layers * chosen + self.num_dense_layers * self.dense_intermediate_size
        return inner / self.num_layers

    @property
    def active_weights(self) -> int:
        """Weights of all layers that a token is multiplied with."""
        chosen = self.num_expert_layers * max(1, self.experts_per_token) * self.expert_weights
        return self._weights_beside_experts + chosen

    @property
    def num_weights(self) -> int:
        """All weights but biases and norms, which are well under 0.1 % of them."""
        experts = self.num_expert_layers * max(1, self.num_experts) * self.expert_weights
        return self._weights_beside_experts + experts + self._table_weights

    @property
    def bytes_per_weight(self) -> WeightBytes:
        """Bytes of a weight in each part of the layers."""
        wide = self.bytes_per_value
        return self.quantized or WeightBytes(attention=wide, experts=wide, dense=wide)

    @property
    def fixed_bytes(self) -> float:
        """Bytes of the layers' weights that every step reads whatever its tokens choose; not a dense feed-forward."""
        each = self.bytes_per_weight
        attention = self.num_layers * self.attention_weights * each.attention
        return attention + self._router_weights * self.bytes_per_value + self._shared_weights * each.dense

    @property
    def expert_bytes(self) -> float:
        """Bytes of all layers' experts, or of a dense feed-forward."""
        experts = self.num_expert_layers * max(1, self.num_experts) * self.expert_weights
        return experts * self.bytes_per_weight.experts

    @property
    def weight_bytes(self) -> int:
        """Bytes the weights take on all GPUs of an instance. Tables and router are never quantised."""
        return round(self.fixed_bytes + self.expert_bytes + self._table_weights * self.bytes_per_value)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache one token takes on all GPUs of an instance."""
        return self.num_layers * self.num_kv_heads * self.kv_head_values * self.kv_bytes_per_value

    def split_sizes(self, tp: int) -> dict[str, float]:
        """What one of `tp` GPUs has of the sizes that they share, of the parts whose weights are quantised."""
        each, wide = self.bytes_per_weight, self.bytes_per_value
        sizes: dict[str, float] = {}
        if each.attention < wide and self.latent:
            *columns, (_, depth) = self.latent.shared_products(self.hidden_size, self.num_heads)
            sizes |= {f"the {width} columns of a projection": width / tp for width, _ in columns}
            sizes[f"the {depth} values of all heads"] = depth / tp
        elif each.attention < wide:
            sizes[f"the {self.query_width} values of all heads"] = self.query_width / tp
            sizes[f"the {self.kv_width} values of all KV heads"] = max(self.head_dim, self.kv_width / tp)
        if each.experts < wide:
            sizes[f"the width of {self.intermediate_size}"] = self.intermediate_size / tp
        if each.dense < wide and self.num_experts:
            for width in filter(None, (self.shared_intermediate_size, self.dense_intermediate_size)):
                sizes[f"the width of {width}"] = width / tp
        return sizes

    def split_depths(self, tp: int) -> dict[str, float]:
        """What one of `tp` GPUs has of the depths that they share, of the parts whose weights are quantised.

        Not of experts: vLLM halves a group of theirs that a GPU would have a part of.
        """
        each, wide = self.bytes_per_weight, self.bytes_per_value
        depths: dict[str, float] = {}
        if each.attention < wide:
            values = self.num_heads * (self.latent.v_head_dim if self.latent else self.head_dim)
            depths[f"the {values} values of all heads"] = values / tp
        widths = [self.shared_intermediate_size, self.dense_intermediate_size]
        if (each.dense if self.num_experts else each.experts) < wide:
            for width in filter(None, widths if self.num_experts else [self.intermediate_size]):
                depths[f"the width of {width}"] = width / tp
        return depths

    def _feed_forward_weights(self, width: int) -> int:
        return (3 if self.gated else 2) * self.hidden_size * width

    @property
    def _weights_beside_experts(self) -> int:
        return self.num_layers * self.attention_weights + self._router_weights + self._shared_weights

    @property
    def _router_weights(self) -> int:
        return self.num_expert_layers * self.hidden_size * self.num_experts

    @property
    def _shared_weights(self) -> int:
        """Of all layers: what all tokens pass beside the experts, and in place of them."""
        beside = self.num_expert_layers * self._feed_forward_weights(self.shared_intermediate_size)
        return beside + self.num_dense_layers * self._feed_forward_weights(self.dense_intermediate_size)

    @property
    def _table_weights(self) -> int:
        return (1 if self.tied_embeddings else 2) * self.vocab_size * self.hidden_size


def model_shape_of(config: Mapping[str, Any], name: str = "") -> ModelShape:
    """The shape in a `config.json` as transformers writes it, of a family in `families.FAMILIES`; of a model with other
    parts (vision) its language model's.

    Raises ConfigError that names the key which is missing or not known, or which makes the model another kind.
    """
    quantization = quantization_of(config)
    outer, config = config, parts_of(config)[-1]
    read = ConfigReader(config, name or str(config.get("_name_or_path", "")) or "model")
    family, latent = _kind(read)
    layers = read.needed(*LAYERS)
    hidden = read.needed(*HIDDEN)
    heads = read.needed("num_attention_heads", "n_head", "n_heads")
    experts = _experts(read, family)
    with_experts = layers_with_experts(read, layers) if experts else [False] * layers
    dense = with_experts.count(False) if experts else 0
    width = _expert_width(read, family) if experts else _inner(read, family)
    dtype_bytes = _dtype_bytes(config)
    if quantization:
        dtype_bytes = min(dtype_bytes, 2)  # vLLM serves quantised weights beside 16 bits
    shape = ModelShape(
        name=read.name,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=1 if latent else _kv_heads(read, family, heads),
        head_dim=latent.mean_head_dim if latent else _head_dim(read, family, hidden, heads),
        intermediate_size=width,
        vocab_size=read.needed("vocab_size"),
        gated=family.gated,
        tied_embeddings=_tied(read, outer, family),
        num_experts=experts,
        experts_per_token=experts_per_token_of(read, experts) if experts else 0,
        shared_intermediate_size=_shared(read, family, width) if experts else 0,
        num_dense_layers=dense,
        dense_intermediate_size=read.needed("intermediate_size_mlp", "intermediate_size") if dense else 0,
        latent=latent,
        bytes_per_value=dtype_bytes,
        kv_bytes_per_value=kv_bytes_of(quantization, dtype_bytes),
        context_tokens=context_tokens_of(read),
    )
    quantized = weight_bytes_of(
        quantization, dtype_bytes, with_experts, projections=shape.projections, gated=shape.gated
    )
    return replace(shape, quantized=quantized)


def _kind(read: ConfigReader) -> tuple[Family, LatentAttention | None]:
    """The config's family and attention; ConfigError for what is not known, by its own key before the family's."""
    family = known_family(read)
    refuse_other_kinds(read, window_switch=family is not None and family.window_switch)
    check_activations(read, family)
    latent = latent_attention_of(read)
    if family is None:
        raise unknown_family(read)
    return family, latent


def _experts(read: ConfigReader, family: Family) -> int:
    experts = num_experts_of(read)
    if not experts and family.experts and family.experts not in read.config:
        return read.needed(family.experts)
    return experts


def _expert_width(read: ConfigReader, family: Family) -> int:
    if family.expert_width:
        return read.needed("moe_intermediate_size")
    return read.known("moe_intermediate_size") or _inner(read, family)


def _shared(read: ConfigReader, family: Family, expert_width: int) -> int:
    return read.needed("intermediate_size") if family.dense_too else shared_width(read, expert_width)


def _inner(read: ConfigReader, family: Family) -> int:
    keys = (family.width,) if family.width else ("ffn_dim", "n_inner", "intermediate_size", "ffn_hidden_size")
    if family.four_times:
        return read.known(*keys) or 4 * read.needed(*HIDDEN)
    return read.needed(*keys) // (2 if family.both_halves else 1)


def _tied(read: ConfigReader, outer: Mapping[str, Any], family: Family) -> bool:
    """Whether the LM head is the embedding table, by the language model's config, the whole one, or the family."""
    for config in (read.config, outer):
        told = config.get("tie_word_embeddings")
        if isinstance(told, bool):
            return told
        if told is not None:
            raise ConfigReader(config, read.name).not_accepted("tie_word_embeddings", "true or false")
    return family.tied


def _kv_heads(read: ConfigReader, family: Family, heads: int) -> int:
    config = read.config
    if config.get("multi_query", family.multi_query) and not config.get("new_decoder_architecture"):
        return 1
    keys = "num_key_value_heads", "num_kv_heads", "n_head_kv"
    told = [key for key in keys if key in config]
    for key in told:
        if config[key] == 0:
            raise read.not_accepted(key, "a whole number, 1 or more")
    found = read.known(*keys) or (not told and family.kv_heads) or heads
    if heads % found:
        raise ConfigError(
            f"the config of {read.name!r} has {heads} heads for {found} KV heads (num_key_value_heads); accepted: a "
            "multiple of them"
        )
    return found


def _head_dim(read: ConfigReader, family: Family, hidden: int, heads: int) -> int:
    """A head's width: what is said of it, the family's, or a head's share of the hidden size."""
    found = read.known("head_dim", "kv_channels") or family.head_dim
    if not found and heads > hidden:
        raise ConfigError(
            f"the config of {read.name!r} has {heads} heads for a hidden size of {hidden}; accepted: 1 to {hidden}"
        )
    if read.known("v_head_dim") not in (0, found):
        raise read.refuse("v_head_dim")
    return found or hidden // heads


def _dtype_bytes(config: Mapping[str, Any]) -> int:
    dtype = str(config.get("torch_dtype") or config.get("dtype") or _DEFAULT_DTYPE).removeprefix("torch.")
    if dtype not in _BYTES:
        raise ConfigError(f"dtype {dtype!r} is not known; accepted: {', '.join(_BYTES)}")
    return _BYTES[dtype]


def read_model_shape(directory: Path) -> ModelShape:
    """The shape of the model in a directory, by its config.json and what stands beside it of quantisation.

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
