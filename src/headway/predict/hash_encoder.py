"""A text as hashed words and letters: no model, no file, well under a millisecond."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np
import numpy.typing as npt

from headway.predict.text_pieces import middle_cut, pieces

DIMENSIONS = 768
MAX_CHARS = 4096
"""Of a longer text the first and the last half of so many characters are read, which bounds the cost."""
_WORD_DIMENSIONS = DIMENSIONS // 2
_LETTERS = 3
_MIX = np.uint32(2654435761)  # 2^32 / golden ratio: neighbouring values land far apart


class HashEncoder:
    """Words and pairs of words in one half of the vector, runs of three bytes in the other; each half of length 1.

    Each feature adds 1 or -1, by one bit of its hash, to the place that the others choose; counts are damped by a
    square root. The same text gives the same vector in every process. O(length), at most `MAX_CHARS` characters.
    Source: Weinberger et al. 2009, Feature hashing for large scale multitask learning (arXiv 0902.2206).
    """

    name = "hash"
    dimensions = DIMENSIONS

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """One row a text, (texts, 768); zeros for an empty one."""
        vectors = np.zeros((len(texts), DIMENSIONS), dtype=np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            cut = middle_cut(text, MAX_CHARS).lower()
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
