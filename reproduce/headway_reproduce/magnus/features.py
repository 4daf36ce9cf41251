"""The paper's features of a request: its texts as vectors, compressed, and the length of the user's input."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np
import numpy.typing as npt

from headway.errors import ConfigError
from headway.predict.lengths.facts import RequestFacts, middle_cut, num_pieces, pieces

DIMENSIONS = 768
HASHED_CHARS = 4096
"""Of a longer text only the first and the last half of this many characters are read, which bounds the cost."""
_WORD_DIMENSIONS = DIMENSIONS // 2
_LETTERS = 3
_MIX = np.uint32(2654435761)  # 2^32 / golden ratio: neighbouring values land far apart


def hash_encoded(texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """One row a text, (texts, 768), zeros for an empty one: a replacement of LaBSE that needs no file.

    Words and pairs of words in one half of the vector, runs of three bytes in the other; each half has length 1. Each
    feature adds 1 or -1, by one bit of its hash, at the place that the other bits choose; counts are damped by a square
    root. The same text gives the same vector in every process. O(length), at most `HASHED_CHARS` characters. Source:
    Weinberger et al. 2009, Feature hashing for large scale multitask learning (arXiv 0902.2206).
    """
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
    """One hash for each run of three bytes of UTF-8."""
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


USER_GROUPS = 16
APP_GROUPS = 4
_COUNTED_CHARS = 1 << 13
"""Of a longer text only the first and the last half of this many characters are counted, the rest in proportion."""
_REMEMBERED_INSTRUCTIONS = 256


def compressed(vectors: npt.NDArray[np.float32], groups: int) -> npt.NDArray[np.float32]:
    """Each row's dimensions in `groups` equal groups, every group its sum over the square root of its size.

    (rows, dimensions) to (rows, groups). Where the dimensions do not divide evenly, the first groups have one
    more than the others. Source: Magnus, compression module (spec 2.3).
    """
    dimensions = vectors.shape[1]
    if not 1 <= groups <= dimensions:
        raise ConfigError(f"{groups} groups of {dimensions} dimensions; accepted: 1 to {dimensions} groups")
    small, larger = divmod(dimensions, groups)
    sizes = np.array([small + (group < larger) for group in range(groups)])
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    sums: npt.NDArray[np.float32] = np.add.reduceat(vectors, starts, axis=1)
    sums /= np.sqrt(sizes)
    return sums


def user_input_tokens(facts: RequestFacts) -> float:
    """UIL: the prompt's tokens times the input's share of all words, CJK characters and marks.

    All of the prompt's tokens where there are no texts to divide by.
    """
    instruction, user_input = _count(facts.instruction), _count(facts.user_input)
    if not instruction + user_input:
        return float(facts.num_prompt_tokens)
    return facts.num_prompt_tokens * user_input / (instruction + user_input)


def _count(text: str) -> float:
    cut = middle_cut(text, _COUNTED_CHARS)
    return num_pieces(cut) * len(text) / len(cut) if cut else 0.0


class MagnusFeatures:
    """16 dimensions of the user's input, 4 of the instruction, and UIL: 21 features a request.

    An instruction is encoded once and remembered, among the last 256: it is what many requests share.
    Source: Magnus (arXiv 2406.04785), generation length predictor (spec 2.3).
    """

    num_features = USER_GROUPS + APP_GROUPS + 1

    def __init__(self) -> None:
        self._instructions: dict[str, npt.NDArray[np.float32]] = {}

    def rows(self, requests: Sequence[RequestFacts], *, text: bool = True) -> npt.NDArray[np.float32]:
        """One row a request, (requests, features); without `text` the dimensions of texts are zeros."""
        found = np.zeros((len(requests), self.num_features), dtype=np.float32)
        if requests and text:
            inputs = hash_encoded([facts.user_input for facts in requests])
            found[:, :USER_GROUPS] = compressed(inputs, USER_GROUPS)
        for row, facts in zip(found, requests, strict=True):
            row[USER_GROUPS:-1] = self._instruction(facts.instruction)
            row[-1] = user_input_tokens(facts)
        return found

    def _instruction(self, text: str) -> npt.NDArray[np.float32]:
        known = self._instructions.pop(text, None)
        if known is None:
            known = compressed(hash_encoded([text]), APP_GROUPS)[0]
            if len(self._instructions) >= _REMEMBERED_INSTRUCTIONS:
                del self._instructions[next(iter(self._instructions))]
        self._instructions[text] = known
        return known
