"""Looks sizes up in a model's config.json, the longest context among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.errors import ConfigError

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed")
_LANGUAGE_MODELS = ("text_config", "llm_config", "language_config")


def parts_of(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A config, and behind it the one of its language model if the model has other parts too (vision)."""
    parts = [config]
    for key in _LANGUAGE_MODELS:
        part = config.get(key)
        if isinstance(part, Mapping) and ("hidden_size" in part or "hidden_size" not in config):
            parts.append(part)
    return parts


class ConfigReader:
    """Looks sizes up under the names that model families give them."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self.config = config
        self.name = name

    def known(self, *keys: str) -> int:
        """The first of these keys that is a positive whole number, or 0 if all are absent, empty, 0 or switches.

        Raises ConfigError for any other value: to pass over it would make another size of it in silence.
        """
        for key in keys:
            value = self.config.get(key)
            if not value or isinstance(value, bool):
                continue
            if not isinstance(value, int) or value < 0:
                raise self.not_accepted(key, "a whole number, 1 or more")
            return value
        return 0

    def needed(self, *keys: str) -> int:
        """The number of the first key that is there; an error if there is none."""
        value = self.known(*keys)
        if value:
            return value
        for key in keys:
            if self.config.get(key) is not None:
                raise self.not_accepted(key, "a whole number, 1 or more")
        raise ConfigError(f"the config of {self.name!r} has no {' or '.join(map(repr, keys))}")

    def listed(self, key: str) -> list[Any]:
        """The list under this key; empty if there is none."""
        value = self.config.get(key)
        return list(value) if isinstance(value, list | tuple) else []

    def by_layer(self, key: str, layers: int) -> list[Any]:
        """The list under this key with an entry for each layer; empty if there is none. ConfigError for any other."""
        value = self.config.get(key)
        if value and not (isinstance(value, list | tuple) and len(value) == layers):
            raise self.not_accepted(key, f"a list with an entry for each of the {layers} layers")
        return self.listed(key)

    def not_accepted(self, key: str, accepted: str) -> ConfigError:
        """What to raise for a value that no model can have."""
        return ConfigError(
            f"the config of {self.name!r} has {key} = {self.config.get(key)!r}; accepted: {accepted}"
        )

    def refuse(self, key: str) -> ConfigError:
        """What to raise where to overlook a key would make a wrong size of it."""
        return ConfigError(
            f"the config of {self.name!r} has {key} = {self.config.get(key)!r}, whose cost is not known"
        )


_POSITIONS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
_INSTEAD = "model_max_length"
"""Command R's own: where it is given, vLLM 0.32 goes by it and by none of these."""
_SCALED_AS_WRITTEN = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
"""Ways to scale rotary positions whose factor is in the written number of positions already, as vLLM 0.32 has it."""


def context_tokens_of(read: ConfigReader) -> int:
    """What vLLM takes for `max_model_len` by itself: the least of what the config says of positions.

    0 where it says nothing, or a factor stretches them further, which vLLM treats model by model.
    """
    scaling = read.config.get("rope_parameters") or read.config.get("rope_scaling")
    scaling = scaling if isinstance(scaling, Mapping) else {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if "factor" in scaling and kind not in _SCALED_AS_WRITTEN:
        return 0
    original = read.known("original_max_position_embeddings") if kind == "longrope" else 0
    return original or read.known(_INSTEAD) or min(filter(None, map(read.known, _POSITIONS)), default=0)
