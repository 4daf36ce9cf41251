"""The accepted trace formats: their columns, and how their cells are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from typing import NotRequired, TypedDict

from headway.core.job import PREFIX_BLOCK_TOKENS
from headway.core.slo import Slo
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


MOONCAKE_BLOCK_TOKENS = PREFIX_BLOCK_TOKENS
"""Tokens of one block in Mooncake's `hash_ids`. Source: Qin et al. 2025, FAST 2025 trace release."""


class Fields(TypedDict):
    """What a line says of its request, all but the arrival."""

    input_tokens: int
    output_tokens: int
    id: NotRequired[str]
    max_output_tokens: NotRequired[int | None]
    tenant: NotRequired[str]
    prompt: NotRequired[str | None]
    session: NotRequired[str | None]
    prefix_blocks: NotRequired[tuple[int, ...]]
    priority: NotRequired[int]
    slo: NotRequired[Slo]


TICKS_PER_S = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""The units of a trace's arrival times."""


@dataclass(frozen=True, slots=True)
class Format:
    """A trace format: what a file must have, time first, and how one row reads.

    `parse` takes a row's cells by column and returns its arrival in ticks of `time_unit` and its fields. Ticks stay
    whole where the file's are, so that shifting them loses no digit. `parse` also reads the columns of `optional` where
    they are there; other columns are passed over. `told_unit` is what the file itself says of the unit of its times;
    empty where that is only assumed.
    """

    name: str
    columns: tuple[str, str, str]
    time_unit: str
    parse: Callable[[Cells], tuple[float, Fields]]
    told_unit: str = ""
    drops_empty: bool = False
    optional: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} ({','.join(self.columns)})"


def _headway(cells: Cells) -> tuple[float, Fields]:
    fields: Fields = {
        "input_tokens": whole(cells, "input_tokens"),
        "output_tokens": whole(cells, "output_tokens"),
        "max_output_tokens": optional_whole(cells, "max_output_tokens"),
        "tenant": cells.get("tenant", ""),
        "prompt": cells.get("prompt") or None,
        "session": cells.get("session") or None,
        "prefix_blocks": identities(cells, "prefix_blocks"),
        "priority": optional_whole(cells, "priority") or 0,
        "slo": _targets(cells),
    }
    if "id" in cells:
        fields["id"] = cells["id"]
    return ticks(cells, "arrival_s"), fields


def _targets(cells: Cells) -> Slo:
    # Beside `api_s`, the measured server time, `ttft_s` is a measurement too: such a file is a log of
    # what happened, and a time it reports is no wish of the client's.
    ttft_s = None if "api_s" in cells else optional_number(cells, "ttft_s")
    return Slo(ttft_s, optional_number(cells, "tbt_s"), optional_number(cells, "deadline_s"))


def _azure(cells: Cells) -> tuple[float, Fields]:
    tokens: Fields = {
        "input_tokens": whole(cells, "ContextTokens"),
        "output_tokens": whole(cells, "GeneratedTokens"),
    }
    return _nanoseconds(cells["TIMESTAMP"].strip()), tokens


_TIMESTAMP = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII
)  # 2023: seven digits, no zone; 2024: six digits or none, +00:00


def _nanoseconds(text: str) -> int:
    accepted = "a time such as 2023-11-16 18:15:46.6805900"
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise TraceError(f"TIMESTAMP is {shown(text)}; accepted: {accepted}")
    clock, fraction, zone = match.groups()
    try:
        whole_s = int(datetime.fromisoformat(clock + (zone or "Z")).timestamp())
    except ValueError as error:
        raise TraceError(f"TIMESTAMP is {shown(text)} ({error}); accepted: {accepted}") from None
    return whole_s * 10**9 + int((fraction or "0").ljust(9, "0"))


def _burstgpt(cells: Cells) -> tuple[float, Fields]:
    fields: Fields = {
        "input_tokens": whole(cells, "Request tokens"),
        "output_tokens": whole(cells, "Response tokens"),
        "session": cells.get("Session ID") or None,
    }
    return ticks(cells, "Timestamp"), fields


def _mooncake(cells: Cells) -> tuple[float, Fields]:
    input_tokens, hashes = whole(cells, "input_length"), identities(cells, "hash_ids")
    blocks = -(-input_tokens // MOONCAKE_BLOCK_TOKENS)
    if len(hashes) > max(blocks, 0):
        # Qwen-Bailian's traces have the same keys with other units, which must not pass for Mooncake's.
        raise TraceError(
            f"hash_ids names {len(hashes)} blocks, but {input_tokens} tokens fill {blocks}; "
            f"accepted: blocks of {MOONCAKE_BLOCK_TOKENS} tokens, as Mooncake publishes"
        )
    fields: Fields = {
        "input_tokens": input_tokens,
        "output_tokens": whole(cells, "output_length"),
        "prefix_blocks": hashes,
    }
    return ticks(cells, "timestamp"), fields


HEADWAY = Format(
    "Headway CSV",
    ("arrival_s", "input_tokens", "output_tokens"),
    "s",
    _headway,
    told_unit="s",
    optional=(
        *("id", "max_output_tokens", "tenant", "prompt", "session", "prefix_blocks", "priority"),
        *("ttft_s", "tbt_s", "deadline_s"),
    ),
)
AZURE = Format(
    "Azure LLM CSV", ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), "ns", _azure, told_unit="dates"
)
BURSTGPT = Format(
    "BurstGPT CSV", ("Timestamp", "Request tokens", "Response tokens"), "s", _burstgpt, drops_empty=True
)
MOONCAKE = Format(
    "Mooncake JSON lines",
    ("timestamp", "input_length", "output_length"),
    "ms",
    _mooncake,
    optional=("hash_ids",),
)

CSV_FORMATS = (HEADWAY, AZURE, BURSTGPT)
ACCEPTED = ", ".join(map(str, (*CSV_FORMATS, MOONCAKE)))
