"""Length predictors by name."""

from __future__ import annotations

import re
from collections.abc import Callable

from headway.errors import ConfigError
from headway.predict.encoders import text_encoder
from headway.predict.forest_predictor import ForestPredictor, LengthFeatures
from headway.predict.history_features import HistoryFeatures
from headway.predict.length_settings import parsed_settings
from headway.predict.magnus_features import MagnusFeatures

LENGTH_PREDICTORS: dict[str, Callable[[str], LengthFeatures]] = {
    "learned": lambda _: HistoryFeatures(),
    "hash": lambda spec: MagnusFeatures(text_encoder(spec)),
    "minilm": lambda spec: MagnusFeatures(text_encoder(spec)),
    "st": lambda spec: MagnusFeatures(text_encoder(spec)),
}
"""Name -> the features it sees. `learned` needs no text; the others are encoders of `predict.encoders`."""
FAST = ("learned", "hash")
"""Those that answer within a millisecond, so that they may be asked on an event loop."""
_SETTINGS = re.compile(r"(?::(?P<settings>[a-z_]+=[^:]*))?$")


def length_predictor(spec: str, *, inline: bool = True) -> ForestPredictor:
    """An untaught predictor: `learned`, `hash`, `minilm` or `st:<directory or hub id>`, then perhaps
    `:key=value,...` (`LengthSettings`).

    With `inline` it fits itself inside `observe`; without, somebody calls `refit` (`predict.learning_thread`).
    Raises ConfigError for an unknown name or setting, a bad value, a missing package or a missing model.
    """
    match = _SETTINGS.search(spec)
    name = spec[: match.start()] if match else spec
    kind, _, source = name.partition(":")
    if kind not in LENGTH_PREDICTORS or bool(source) != (kind == "st"):
        raise ConfigError(
            f"unknown length predictor {spec!r}; accepted: learned, hash, minilm, st:<directory or hub id>, "
            "each perhaps with :key=value,..."
        )
    settings = parsed_settings(f"length predictor {name!r}", (match and match["settings"]) or "")
    return ForestPredictor(LENGTH_PREDICTORS[kind](name), settings, inline=inline)
