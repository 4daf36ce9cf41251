"""Numbers out of text cells, read strictly."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite

from headway.errors import TraceError

Cells = Mapping[str, str]

MAX_SHOWN_CHARACTERS = 80
"""How much of a text an error repeats: enough to find it, and no screenful of a binary file."""

_WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_TICKS = re.compile(r"\+?\d{1,19}", re.ASCII)
_IDENTITY = re.compile(r"[+-]?\d{1,20}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def shown(text: str) -> str:
    """The text as an error quotes it: on one line, printable, and not at length."""
    quoted = repr(text)
    return quoted if len(quoted) <= MAX_SHOWN_CHARACTERS else quoted[:MAX_SHOWN_CHARACTERS] + "…"


def whole(cells: Cells, column: str) -> int:
    """The whole number in a cell; `5.0` and `1_000` are not."""
    text = cells[column].strip()
    if not _WHOLE.fullmatch(text):
        raise TraceError(f"{column} is {shown(text)}; accepted: a whole number")
    return int(text)


def identities(cells: Cells, column: str) -> tuple[int, ...]:
    """The whole numbers in a cell, parted by blanks, none where the column is absent: any of 64 bits, as hashes are."""
    texts = cells.get(column, "").split()
    for text in texts:
        if not _IDENTITY.fullmatch(text):
            raise TraceError(
                f"{column} is {shown(text)}; accepted: whole numbers of 64 bits, parted by blanks"
            )
    return tuple(map(int, texts))


def number(cells: Cells, column: str) -> float:
    """The finite decimal number in a cell."""
    text = cells[column].strip()
    if not _NUMBER.fullmatch(text) or not isfinite(float(text)):
        raise TraceError(f"{column} is {shown(text)}; accepted: a finite number")
    return float(text)


def ticks(cells: Cells, column: str) -> float:
    """The time in a cell, 0 or more; a whole number stays one, since a float loses digits of nanoseconds since 1970."""
    text = cells[column].strip()
    value = int(text) if _TICKS.fullmatch(text) else number(cells, column)
    if value < 0:
        raise TraceError(f"{column} is {shown(text)}; accepted: a time, 0 or more")
    return value


def optional_whole(cells: Cells, column: str) -> int | None:
    """The whole number in a cell; None where the column or its text is absent."""
    return whole(cells, column) if cells.get(column) else None


def optional_number(cells: Cells, column: str) -> float | None:
    """The finite decimal number in a cell; None where the column or its text is absent."""
    return number(cells, column) if cells.get(column) else None
