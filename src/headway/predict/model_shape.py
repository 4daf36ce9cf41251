"""What of a model its cost depends on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.errors import ConfigError

_GATED_ACTIVATIONS = frozenset({"silu", "swish", "swiglu"})
_GATED_FAMILIES = ("gemma", "qwen")
"""Families whose feed-forward is gated although the activation is GELU, or not named."""
_BOTH_HALVES = "qwen"
"""The family, Qwen's first, whose config counts the two halves of the gated feed-forward as one width."""
_POSITIONS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_sequence_length",
)
_SCALED_AS_WRITTEN = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
"""Ways to scale rotary positions whose factor is in the written number of positions already, as vLLM 0.32 has it."""
_BYTES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2, "float8_e4m3fn": 1}
_DEFAULT_DTYPE = "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder's sizes, in vLLM's and transformers' words.

    `intermediate_size` is the width of one expert where there are several. `num_experts` is 0 for a dense
    model. `kv_bytes_per_value` differs from `bytes_per_value` under a quantised cache. `context_tokens` is how long
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
    def attention_weights(self) -> int:
        """Weights of one layer's four projections."""
        return self.hidden_size * (2 * self.query_width + 2 * self.kv_width)

    @property
    def expert_weights(self) -> int:
        """Weights of one feed-forward block, or of one expert."""
        return (3 if self.gated else 2) * self.hidden_size * self.intermediate_size

    @property
    def active_layer_weights(self) -> int:
        """Weights of one layer that a token is multiplied with."""
        if not self.num_experts:
            return self.attention_weights + self.expert_weights
        router = self.hidden_size * self.num_experts
        return self.attention_weights + router + self.experts_per_token * self.expert_weights

    @property
    def num_weights(self) -> int:
        """All weights but biases and norms, which are well under 0.1 % of them."""
        experts = max(1, self.num_experts)
        layer = self.attention_weights + self.hidden_size * self.num_experts + experts * self.expert_weights
        tables = 1 if self.tied_embeddings else 2
        return self.num_layers * layer + tables * self.vocab_size * self.hidden_size

    @property
    def weight_bytes(self) -> int:
        """Bytes the weights take on all GPUs of an instance."""
        return self.num_weights * self.bytes_per_value

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache one token takes on all GPUs of an instance."""
        return 2 * self.num_layers * self.kv_width * self.kv_bytes_per_value


def model_shape_of(config: Mapping[str, Any], name: str = "") -> ModelShape:
    """The shape in a `config.json` as transformers writes it, of Llama, Mistral, Qwen, Gemma, OPT or GPT kind.

    Raises ConfigError that names the key which is missing.
    """
    text = config.get("text_config")
    if isinstance(text, Mapping) and "hidden_size" in text:
        config = text
    read = _Reader(config, name or str(config.get("_name_or_path", "")) or "model")
    hidden = read.needed("hidden_size", "n_embd", "d_model")
    heads = read.needed("num_attention_heads", "n_head", "n_heads")
    experts = read.known("num_local_experts", "num_experts", "n_routed_experts")
    inner = read.known("ffn_dim", "n_inner", "intermediate_size", "ffn_hidden_size")
    inner //= 2 if config.get("model_type") == _BOTH_HALVES else 1
    dtype_bytes = _dtype_bytes(config)
    return ModelShape(
        name=read.name,
        num_layers=read.needed("num_hidden_layers", "n_layer", "n_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=_kv_heads(read, heads),
        head_dim=read.known("head_dim") or hidden // heads,
        intermediate_size=(experts and read.known("moe_intermediate_size")) or inner or _default_inner(read),
        vocab_size=read.needed("vocab_size"),
        gated=_is_gated(config),
        tied_embeddings=bool(config.get("tie_word_embeddings", _ties_by_default(config))),
        num_experts=experts,
        experts_per_token=read.needed("num_experts_per_tok", "moe_top_k") if experts else 0,
        bytes_per_value=dtype_bytes,
        kv_bytes_per_value=dtype_bytes,
        context_tokens=_context_tokens(read),
    )


class _Reader:
    """Looks sizes up under the names that model families give them."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self.config = config
        self.name = name

    def known(self, *keys: str) -> int:
        """The first of these keys that is a positive whole number, or 0."""
        for key in keys:
            value = self.config.get(key)
            if isinstance(value, int) and value > 0:
                return value
        return 0

    def needed(self, *keys: str) -> int:
        """The same, but an error if there is none."""
        value = self.known(*keys)
        if not value:
            raise ConfigError(f"the config of {self.name!r} has no {' or '.join(map(repr, keys))}")
        return value


def _context_tokens(read: _Reader) -> int:
    """What vLLM takes for `max_model_len` by itself: the least of what the config says of positions.

    0 where it says nothing, or a factor stretches them further, which vLLM treats model by model.
    """
    scaling = read.config.get("rope_parameters") or read.config.get("rope_scaling")
    scaling = scaling if isinstance(scaling, Mapping) else {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if "factor" in scaling and kind not in _SCALED_AS_WRITTEN:
        return 0
    original = read.known("original_max_position_embeddings") if kind == "longrope" else 0
    return original or min(filter(None, map(read.known, _POSITIONS)), default=0)


def _kv_heads(read: _Reader, heads: int) -> int:
    if read.config.get("multi_query") is True and not read.config.get("new_decoder_architecture"):
        return 1
    return read.known("num_key_value_heads", "num_kv_heads", "n_head_kv") or heads


def _default_inner(read: _Reader) -> int:
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
    """What transformers assumes where the key is absent: OPT, GPT-2, BLOOM and Gemma tie, the others do not."""
    return str(config.get("model_type", "")).startswith(("opt", "gpt2", "bloom", "gemma"))


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
