"""The length predictors that a flag can name."""

from __future__ import annotations

import re
from collections.abc import Callable

from headway.errors import ConfigError
from headway.predict.lengths.encoders import text_encoder
from headway.predict.lengths.features import HistoryFeatures, MagnusFeatures
from headway.predict.lengths.forest import parsed_settings
from headway.predict.lengths.predictor import ForestPredictor, LengthFeatures

LENGTH_PREDICTORS: dict[str, Callable[[str], LengthFeatures]] = {
    "learned": lambda _: HistoryFeatures(),
    "hash": lambda spec: MagnusFeatures(text_encoder(spec)),
    "minilm": lambda spec: MagnusFeatures(text_encoder(spec)),
    "st": lambda spec: MagnusFeatures(text_encoder(spec)),
}
"""Name -> the features it sees. `learned` needs no text; the others are encoders of `predict.lengths.encoders`."""
NONE = "none"
"""No predictor."""
DEFAULT_PREDICTOR = "learned"
"""What predicts for policies that go by predictions, if nothing is said."""
FAST = ("learned", "hash")
"""Predictors that answer within a millisecond, so that they may be asked on an event loop."""
ACCEPTED = "learned, hash, minilm, st:DIR|HUB (each perhaps with :key=value,...)"
"""How they are written, for messages."""
_SETTINGS = re.compile(r"(?::(?P<settings>[a-z_]+=[^:]*))?$")


def is_length_predictor(spec: str) -> bool:
    """Whether that is how one is written; its settings, package or model may still be missing or wrong."""
    kind, _, source = _parted(spec)[0].partition(":")
    return kind in LENGTH_PREDICTORS and bool(source) == (kind == "st")


def length_predictor(spec: str, *, inline: bool = True) -> ForestPredictor:
    """An untaught predictor: `learned`, `hash`, `minilm` or `st:<directory or hub id>`, then perhaps
    `:key=value,...` (`LengthSettings`).

    With `inline` it fits itself inside `observe`; without, `LearningThread` calls `refit`.
    Raises ConfigError for an unknown name or setting, a bad value, a missing package or a missing model.
    """
    if not is_length_predictor(spec):
        raise ConfigError(f"unknown length predictor {spec!r}; accepted: {ACCEPTED}")
    name, given = _parted(spec)
    settings = parsed_settings(f"length predictor {name!r}", given)
    return ForestPredictor(LENGTH_PREDICTORS[name.partition(":")[0]](name), settings, inline=inline)


def _parted(spec: str) -> tuple[str, str]:
    """The name of a predictor, with what it names beside, and its settings."""
    match = _SETTINGS.search(spec)
    return (spec[: match.start()], match["settings"] or "") if match else (spec, "")
