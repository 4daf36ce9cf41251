"""Looks sizes up in a model's config.json, and in its family's defaults where the config is silent."""

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
    """A config, and behind it the one of its language model if the model has other parts too (vision)."""
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
    """What the class of this model type in transformers takes for keys that a config leaves out; empty if none has."""
    defaults: dict[str, int | bool] = _family_defaults()["defaults"].get(model_type, {})
    return defaults


def text_part_of(model_type: object) -> str | None:
    """The model type of the language model in a model with other parts too, where its part of the config has none."""
    part: str | None = _family_defaults()["text_parts"].get(model_type)
    return part


class ConfigReader:
    """Looks sizes up under the names that model families give them.

    A key that the config has counts, even if its value is null: of a size that several keys may tell, `defaults` are
    asked only if the config has none of them.
    """

    def __init__(
        self, config: Mapping[str, Any], name: str, defaults: Mapping[str, int | bool] | None = None
    ) -> None:
        self.config = config
        self.name = name
        self.defaults = defaults or {}

    def get(self, *keys: str) -> Any:
        """The value of the first key that the config has, else of the first that has a default; None without."""
        for values in (self.config, self.defaults):
            for key in keys:
                if key in values:
                    return values[key]
        return None

    def known(self, *keys: str) -> int:
        """The first of these keys that is a positive whole number, or 0 if all are absent, empty, 0 or switches.

        Raises ConfigError for any other value: to pass over it would make another size of it in silence.
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
_SCALED_FAMILY = "gemma3"
"""Family whose factor is in the written number too, however positions are scaled."""


def context_tokens_of(read: ConfigReader) -> int:
    """What vLLM takes for `max_model_len` by itself: the least of what the config says of positions, times the factor
    by which they are stretched. 0 where it says nothing.
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
    """How rotary positions are scaled: once, or for each kind of layers."""
    told = read.config.get("rope_parameters") or read.config.get("rope_scaling")
    if not isinstance(told, Mapping):
        return []
    by_kind = [each for each in told.values() if isinstance(each, Mapping)]
    return by_kind or [told]
