"""The length predictor by the name that a flag gives it."""

from __future__ import annotations

from headway.errors import ConfigError
from headway.predict.lengths.predictor import LengthLearner

DEFAULT_PREDICTOR = "learned"
"""What predicts for policies that go by predictions, if nothing is said."""
NONE = "none"
"""No predictor."""
REPLACED = ("learned", "hash", "minilm", "st")
"""What names began with before there was one predictor for all: encoders of texts, with settings behind a colon."""


def check_length_predictor(spec: str) -> None:
    """Raise ConfigError unless that is how one is written."""
    if spec == DEFAULT_PREDICTOR:
        return
    if spec.partition(":")[0] in REPLACED:
        raise ConfigError(
            f"length predictor {spec!r} is gone: {DEFAULT_PREDICTOR!r} reads prompts too, and has no settings; "
            f"accepted: {DEFAULT_PREDICTOR}"
        )
    raise ConfigError(f"unknown length predictor {spec!r}; accepted: {DEFAULT_PREDICTOR}")


def length_predictor(spec: str = DEFAULT_PREDICTOR) -> LengthLearner:
    """An untaught predictor. Raises ConfigError as `check_length_predictor`."""
    check_length_predictor(spec)
    return LengthLearner()
