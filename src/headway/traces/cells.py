"""Converts the cells of a trace file to numbers, times and identities."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from math import isfinite

from headway.errors import TraceError

Cells = Mapping[str, str]
TICKS_PER_S = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Units of a trace's arrival times."""

MAX_SHOWN_CHARACTERS = 80
"""Characters of a text that an error repeats: enough to find it, without printing a binary file."""

_WHOLE = re.compile(r"([+-]?\d{1,18})(\.0*)?", re.ASCII)
_TICKS = re.compile(r"\+?\d{1,19}", re.ASCII)
_IDENTITY = re.compile(r"[+-]?\d{1,20}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def shown(text: str) -> str:
    """A text as an error quotes it: on one line, printable, and shortened."""
    quoted = repr(text)
    return quoted if len(quoted) <= MAX_SHOWN_CHARACTERS else quoted[:MAX_SHOWN_CHARACTERS] + "…"


def whole(cells: Cells, column: str) -> int:
    """The integer in a cell; accepts `5.0`, as tables with gaps write it, but not `5.5` or `1_000`."""
    text = cells[column].strip()
    match = _WHOLE.fullmatch(text)
    if match is None:
        raise TraceError(f"{column} is {shown(text)}; accepted: a whole number")
    return int(match[1])


def identities(cells: Cells, column: str) -> tuple[int, ...]:
    """The integers in a cell, separated by blanks; empty without the column. Any 64 bits, since they are hashes."""
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
    """The time in a cell, 0 or more; an integer stays one, since a float loses digits of nanoseconds since 1970."""
    text = cells[column].strip()
    value = int(text) if _TICKS.fullmatch(text) else number(cells, column)
    if value < 0:
        raise TraceError(f"{column} is {shown(text)}; accepted: a time, 0 or more")
    return value


_DATE = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(Z| UTC|[+-]\d\d:?\d\d)?", re.ASCII
)  # Azure 2023: seven digits, no zone; 2024: six digits or none, +00:00
DATES_S = 1e9, 4e9
"""Seconds since 1970 of the years 2001 to 2096: a number in this range is a date, which reveals its unit."""


def is_date(text: str) -> bool:
    """Whether a cell has a date and time of day, as text."""
    return _DATE.fullmatch(text.strip()) is not None


def unit_of_date(text: str) -> str | None:
    """The unit in which a number since 1970 is a date; None for other text."""
    if not _NUMBER.fullmatch(text.strip()):
        return None
    value = Decimal(text.strip())
    return next(
        (unit for unit, per_s in TICKS_PER_S.items() if DATES_S[0] <= value / per_s < DATES_S[1]), None
    )


def dates(cells: Cells, column: str) -> int:
    """The date in a cell in nanoseconds since 1970, from text or from a number whose size reveals its unit."""
    text = cells[column].strip()
    if match := _DATE.fullmatch(text):
        day, clock, fraction, zone = match.groups()
        zone = "Z" if zone in (None, " UTC") else zone
        try:
            whole_s = int(datetime.fromisoformat(f"{day} {clock}{zone}").timestamp())
        except ValueError as error:
            raise TraceError(f"{column} is {shown(text)} ({error}); accepted: {_A_DATE}") from None
        return whole_s * 10**9 + int((fraction or "0").ljust(9, "0"))
    if unit := unit_of_date(text):
        return int(Decimal(text) * (10**9 // TICKS_PER_S[unit]))
    raise TraceError(f"{column} is {shown(text)}; accepted: {_A_DATE}")


_A_DATE = "a time such as 2023-11-16 18:15:46.6805900, or since 1970"


def optional_whole(cells: Cells, column: str) -> int | None:
    """The integer in a cell; None without the column or its text."""
    return whole(cells, column) if cells.get(column) else None


def optional_number(cells: Cells, column: str) -> float | None:
    """The finite decimal number in a cell; None without the column or its text."""
    return number(cells, column) if cells.get(column) else None
