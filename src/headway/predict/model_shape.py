"""What of a model its cost depends on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.errors import ConfigError
from headway.predict.config_reader import ConfigReader
from headway.predict.context_tokens import context_tokens_of
from headway.predict.expert_layers import (
    experts_per_token_of,
    layers_with_experts,
    num_experts_of,
    shared_width,
)
from headway.predict.latent_attention import LatentAttention, latent_attention_of
from headway.predict.other_kinds import refuse_other_kinds
from headway.predict.quantization import WeightBytes, kv_bytes_of, weight_bytes_of

_GATED_ACTIVATIONS = frozenset({"silu", "swish", "swiglu"})
_GATED_FAMILIES = ("gemma", "qwen")
"""Families whose feed-forward is gated although the activation is GELU, or not named."""
_BOTH_HALVES = "qwen"
"""The family, Qwen's first, whose config counts the two halves of the gated feed-forward as one width."""
_TIED_FAMILIES = (
    "opt",
    "gpt2",
    "gpt_bigcode",
    "bloom",
    "falcon",
    "mpt",
    "gemma",
    "cohere",
    "starcoder2",
    "ernie4_5",
    "smollm3",
)
"""Families whose LM head is the embedding table where their config does not say, as transformers 5.19 has it."""
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
    def attention_weights(self) -> int:
        """Weights of one layer's projections."""
        if self.latent:
            return self.latent.weights(self.hidden_size, self.num_heads)
        return self.hidden_size * (2 * self.query_width + 2 * self.kv_width)

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
    """The shape in a `config.json` as transformers writes it, of Llama, Mistral, Qwen, DeepSeek, Gemma, OPT or GPT
    kind; of a model with other parts (vision) its language model's.

    Raises ConfigError that names the key which is missing, or which makes the model another kind.
    """
    text = config.get("text_config")
    if isinstance(text, Mapping) and "hidden_size" in text:
        beside = config.get("quantization_config")
        config = {**text, "quantization_config": text.get("quantization_config") or beside}
    read = ConfigReader(config, name or str(config.get("_name_or_path", "")) or "model")
    refuse_other_kinds(read)
    layers = read.needed("num_hidden_layers", "n_layer", "n_layers")
    hidden = read.needed("hidden_size", "n_embd", "d_model")
    heads = read.needed("num_attention_heads", "n_head", "n_heads")
    experts = num_experts_of(read)
    with_experts = layers_with_experts(read, layers) if experts else [False] * layers
    dense = with_experts.count(False) if experts else 0
    inner = read.known("ffn_dim", "n_inner", "intermediate_size", "ffn_hidden_size")
    inner //= 2 if config.get("model_type") == _BOTH_HALVES else 1
    width = (experts and read.known("moe_intermediate_size")) or inner or _default_inner(read)
    latent = latent_attention_of(read)
    dtype_bytes = _dtype_bytes(config)
    return ModelShape(
        name=read.name,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=1 if latent else _kv_heads(read, heads),
        head_dim=latent.mean_head_dim if latent else _head_dim(read, hidden, heads),
        intermediate_size=width,
        vocab_size=read.needed("vocab_size"),
        gated=_is_gated(config),
        tied_embeddings=bool(config.get("tie_word_embeddings", _ties_by_default(config))),
        num_experts=experts,
        experts_per_token=experts_per_token_of(read, experts) if experts else 0,
        shared_intermediate_size=shared_width(read, width) if experts else 0,
        num_dense_layers=dense,
        dense_intermediate_size=read.needed("intermediate_size_mlp", "intermediate_size") if dense else 0,
        latent=latent,
        quantized=weight_bytes_of(config, dtype_bytes, with_experts),
        bytes_per_value=dtype_bytes,
        kv_bytes_per_value=kv_bytes_of(config, dtype_bytes),
        context_tokens=context_tokens_of(read),
    )


def _kv_heads(read: ConfigReader, heads: int) -> int:
    if read.config.get("multi_query") is True and not read.config.get("new_decoder_architecture"):
        return 1
    return read.known("num_key_value_heads", "num_kv_heads", "n_head_kv") or heads


def _head_dim(read: ConfigReader, hidden: int, heads: int) -> int:
    """A head's width: what is said of it, else a head's share of the hidden size."""
    if not read.known("head_dim") and heads > hidden:
        raise ConfigError(
            f"the config of {read.name!r} has {heads} heads for a hidden size of {hidden}; accepted: 1 to {hidden}"
        )
    return read.known("head_dim") or hidden // heads


def _default_inner(read: ConfigReader) -> int:
    """GPT-2, BLOOM and Falcon leave the width out where it is four times the hidden size."""
    if _is_gated(read.config):
        return read.needed("intermediate_size")
    return 4 * read.needed("hidden_size", "n_embd", "d_model")


def _is_gated(config: Mapping[str, Any]) -> bool:
    if str(config.get("model_type", "")).startswith(_GATED_FAMILIES):
        return True
    activation = (
        config.get("hidden_act") or config.get("hidden_activation") or config.get("activation_function")
    )
    return str(activation) in _GATED_ACTIVATIONS


def _ties_by_default(config: Mapping[str, Any]) -> bool:
    """Whether the LM head is the embedding table where the key is absent."""
    return str(config.get("model_type", "")).startswith(_TIED_FAMILIES)


def _dtype_bytes(config: Mapping[str, Any]) -> int:
    dtype = str(config.get("torch_dtype") or config.get("dtype") or _DEFAULT_DTYPE).removeprefix("torch.")
    if dtype not in _BYTES:
        raise ConfigError(f"dtype {dtype!r} is not known; accepted: {', '.join(_BYTES)}")
    return _BYTES[dtype]


def read_model_shape(directory: Path) -> ModelShape:
    """The shape of the model in a directory. Raises ConfigError without a readable config.json."""
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path} holds {type(config).__name__}, not an object")
    return model_shape_of(config, directory.name)
