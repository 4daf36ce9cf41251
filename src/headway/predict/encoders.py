"""Text encoders by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headway.errors import ConfigError
from headway.predict.hash_encoder import HashEncoder
from headway.predict.sentence_encoder import SentenceEncoder, packaged_minilm

ACCEPTED = "hash, minilm, st:<directory or hub id>"


class TextEncoder(Protocol):
    """Turns texts into vectors; the same text always into the same one, alone or among others."""

    name: str
    dimensions: int

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """One row a text, (texts, dimensions)."""
        ...


def text_encoder(spec: str) -> TextEncoder:
    """The encoder of this name. Raises ConfigError for an unknown one, or one whose package or files are missing."""
    kind, _, source = spec.partition(":")
    if kind == "st" and source:
        return SentenceEncoder(spec, source)
    if spec == "hash":
        return HashEncoder()
    if spec == "minilm":
        return packaged_minilm()
    raise ConfigError(f"unknown encoder {spec!r}; accepted: {ACCEPTED}")
