"""The length predictor selected by a flag."""

from __future__ import annotations

from headway.errors import ConfigError, meant
from headway.predict.lengths.predictor import LengthLearner

DEFAULT_PREDICTOR = "learned"
"""Default predictor for policies that use predictions."""
NONE = "none"
"""Name for no predictor."""
REPLACED = ("learned", "hash", "minilm", "st")
"""Prefixes of older predictor names, which are refused: encoders of texts, with settings after a colon."""


def check_length_predictor(spec: str) -> None:
    """Raise ConfigError unless the text names a predictor."""
    if spec == DEFAULT_PREDICTOR:
        return
    if spec.partition(":")[0] in REPLACED:
        raise ConfigError(
            f"length predictor {spec!r} is gone: {DEFAULT_PREDICTOR!r} reads prompts too, and has no settings; "
            f"accepted: {DEFAULT_PREDICTOR}"
        )
    raise ConfigError(f"unknown length predictor {spec!r}; {meant(spec, [DEFAULT_PREDICTOR])}")


def length_predictor(spec: str = DEFAULT_PREDICTOR) -> LengthLearner:
    """Make a fresh predictor. Raises ConfigError as `check_length_predictor` does."""
    check_length_predictor(spec)
    return LengthLearner()
