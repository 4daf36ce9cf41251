"""Looks up sizes in a model's config.json, and in its family's defaults if the config has none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from headway.errors import ConfigError

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed")
_LANGUAGE_MODELS = ("text_config", "llm_config", "language_config")


def parts_of(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A config, followed by that of its language model if the model has other parts too (vision)."""
    parts = [config]
    for key in _LANGUAGE_MODELS:
        part = config.get(key)
        if isinstance(part, Mapping) and ("hidden_size" in part or "hidden_size" not in config):
            parts.append(part)
    return parts


@cache
def _family_defaults() -> dict[str, Any]:
    """The table that `bench/simulator/family_defaults.py` writes."""
    text = files(__package__).joinpath("family_defaults.json").read_bytes()
    return dict(json.loads(text))


def defaults_of(model_type: object) -> Mapping[str, int | bool]:
    """The defaults of this model type's class in transformers for keys that a config omits; empty if unknown."""
    defaults: dict[str, int | bool] = _family_defaults()["defaults"].get(model_type, {})
    return defaults


def text_part_of(model_type: object) -> str | None:
    """The model type of the language model inside a multimodal model whose language part does not state it."""
    part: str | None = _family_defaults()["text_parts"].get(model_type)
    return part


class ConfigReader:
    """Looks up sizes under the names that model families use.

    A key in the config counts even if its value is null: for a size with several possible keys, `defaults` are used
    only if the config has none of them.
    """

    def __init__(
        self, config: Mapping[str, Any], name: str, defaults: Mapping[str, int | bool] | None = None
    ) -> None:
        self.config = config
        self.name = name
        self.defaults = defaults or {}

    def get(self, *keys: str) -> Any:
        """The value of the first key that the config has, else of the first with a default; None without either."""
        for values in (self.config, self.defaults):
            for key in keys:
                if key in values:
                    return values[key]
        return None

    def known(self, *keys: str) -> int:
        """The first of these keys that is a positive integer, or 0 if all are absent, empty, 0 or booleans.

        Raises ConfigError for any other value: ignoring it would silently give another size.
        """
        told = any(key in self.config for key in keys)
        for key in keys:
            value = (self.config if told else self.defaults).get(key)
            if not value or isinstance(value, bool):
                continue
            if not isinstance(value, int) or value < 0:
                raise self.not_accepted(key, "a whole number, 1 or more")
            return value
        return 0

    def needed(self, *keys: str) -> int:
        """The number under the first key that exists. Raises ConfigError if none does."""
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
        """The list under this key with an entry for each layer; empty if there is none. Raises ConfigError for
        other lists.
        """
        value = self.config.get(key)
        if value and not (isinstance(value, list | tuple) and len(value) == layers):
            raise self.not_accepted(key, f"a list with an entry for each of the {layers} layers")
        return self.listed(key)

    def not_accepted(self, key: str, accepted: str) -> ConfigError:
        """The error for a value that no model can have."""
        return ConfigError(
            f"the config of {self.name!r} has {key} = {self.config.get(key)!r}; accepted: {accepted}"
        )

    def refuse(self, key: str) -> ConfigError:
        """The error for a key that would give a wrong size if it were ignored."""
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
"""Command R's key: vLLM 0.32 uses it, if given, in place of all of these."""
_SCALED_AS_WRITTEN = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
"""Ways to scale rotary positions whose factor the written number of positions includes already, as in vLLM 0.32."""
_SCALED_FAMILY = "gemma3"
"""Family whose written number includes the factor too, however positions are scaled."""


def context_tokens_of(read: ConfigReader) -> int:
    """vLLM's default for `max_model_len`: the smallest stated number of positions, times their scaling. 0 if none
    is stated.
    """
    factor = 1.0
    for scaling in _scalings(read):
        kind = scaling.get("rope_type", scaling.get("type"))
        if kind == "longrope" and (original := read.known("original_max_position_embeddings")):
            return original
        if kind not in _SCALED_AS_WRITTEN and not str(read.config.get("model_type")).startswith(
            _SCALED_FAMILY
        ):
            told = scaling.get("factor")
            factor = float(told) if isinstance(told, int | float) else factor
    positions = read.known(_INSTEAD) or min(filter(None, map(read.known, _POSITIONS)), default=0)
    return int(positions * factor)


def _scalings(read: ConfigReader) -> list[Mapping[str, Any]]:
    """The scaling of rotary positions: a single one, or one for each kind of layer."""
    told = read.config.get("rope_parameters") or read.config.get("rope_scaling")
    if not isinstance(told, Mapping):
        return []
    by_kind = [each for each in told.values() if isinstance(each, Mapping)]
    return by_kind or [told]
