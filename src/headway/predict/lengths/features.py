"""The numbers that describe a request to the length predictor."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import log
from zlib import crc32

import numpy as np

from headway.predict.lengths.facts import CJK, RequestFacts, middle_cut
from headway.predict.lengths.ridge import Vector

READ_CHARS = 1024
"""Of a longer input the first and last half of this many characters are read, which bounds the cost."""
HASHED = 256
"""Number of buckets for hashed words."""
PLAIN = 7
"""Features of a text besides its words."""
FEATURES = PLAIN + HASHED
_CJK = re.compile(f"[{CJK}]")
_MARKS = bytes(code for code in range(33, 127) if not chr(code).isalnum())
_WORDS = bytes(32 if code < 33 or code in _MARKS else code for code in range(256)).lower()
"""Byte table that prepares a text for splitting into words: marks become separators, upper case becomes lower case."""
_FIRST, _LAST = 1, 2
"""Hash seeds that distinguish the first and the last word from the same words elsewhere."""
_MIX = np.uint32(2654435761)  # 2^32 / golden ratio: neighbouring values land far apart


@dataclass(frozen=True, slots=True)
class LengthFeatures:
    """Logarithms of the input's and the whole prompt's tokens, and the features of the text, (FEATURES,)."""

    log_input: float
    log_prompt: float
    text: Vector


def length_features(facts: RequestFacts) -> LengthFeatures:
    """The predictor's inputs; equal for equal requests in every process.

    Of the instruction only the length counts, as the rest of the prompt: its meaning is learned from the answers that
    it got. O(length), at most READ_CHARS characters.
    """
    log_prompt = log(max(1, facts.num_prompt_tokens))
    numbers = np.zeros(FEATURES)
    numbers[:2] = 1.0, log_prompt - 5.0
    cut = middle_cut(facts.user_input, READ_CHARS)
    if not cut:
        return LengthFeatures(log_prompt, log_prompt, numbers)
    spaced, num_cjk = (cut, 0) if cut.isascii() else _CJK.subn(r" \g<0> ", cut)
    content = spaced.encode("utf-8", "surrogatepass")
    words = content.translate(_WORDS).split()
    num_marks = len(content) - len(content.translate(None, _MARKS))
    pieces = max(1, len(words) + num_marks)
    numbers[2:PLAIN] = (
        num_cjk / pieces,
        log((len(content) - 2 * num_cjk) / pieces) - 1.5,
        40 * cut.count("\n") / len(cut),
        num_marks / pieces,
        cut.rstrip()[-1:] == "?",
    )
    numbers[PLAIN:] = _hashed(words)
    return LengthFeatures(log(pieces * len(facts.user_input) / len(cut)), log_prompt, numbers)


def _hashed(words: list[bytes]) -> Vector:
    """The words hashed to HASHED buckets, as a unit vector; zeros for none. Counts are damped by a square root.

    Source: Weinberger et al. 2009, Feature hashing for large scale multitask learning (arXiv 0902.2206).
    """
    if not words:
        return np.zeros(HASHED)
    ends = (crc32(words[0], _FIRST), crc32(words[-1], _LAST))
    mixed = np.fromiter((*map(crc32, words), *ends), np.uint32, len(words) + len(ends)) * _MIX
    mixed ^= mixed >> np.uint32(15)
    signs = (mixed & np.uint32(1)) * 2.0 - 1.0
    sums = np.bincount((mixed >> np.uint32(1)) % np.uint32(HASHED), weights=signs, minlength=HASHED)
    damped: Vector = np.sign(sums) * np.sqrt(np.abs(sums))
    length = float(damped @ damped) ** 0.5
    return damped / length if length else damped
