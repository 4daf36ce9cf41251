"""Text counted without a tokenizer: words, CJK characters and marks."""

from __future__ import annotations

import re
from itertools import islice

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_PLAIN = rf"[{_CJK}]|[^\W{_CJK}]+|[^\w\s]"
_PIECE = re.compile(_PLAIN)
_SPACED = re.compile(rf"\s*(?:{_PLAIN})|\s+")


def pieces(text: str) -> list[str]:
    """The words, CJK characters and punctuation marks of a text, in order. O(length)."""
    return _PIECE.findall(text)


def spaced_pieces(text: str, most: int) -> list[str]:
    """The first `most` pieces, each with the space before it: as many as there are make up the whole text."""
    return [match[0] for match in islice(_SPACED.finditer(text), most)]


def num_pieces(text: str) -> int:
    """A tokenizer-free count of tokens: one for each word, CJK character or punctuation mark."""
    return len(pieces(text))


def middle_cut(text: str, max_chars: int) -> str:
    """The text, or its first and last `max_chars` / 2 characters: what is asked for stands at an end."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return text[:half] + text[len(text) - half :]
