"""Writes requests as a Headway CSV, or as lines in Mooncake's format."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from itertools import pairwise
from os import PathLike
from pathlib import Path

import msgspec

from headway.errors import TraceError
from headway.traces.cells import TICKS_PER_S
from headway.traces.request import TraceRequest


def _seconds(value: float | None) -> str:
    return "" if value is None else repr(float(value))


REQUIRED: dict[str, Callable[[TraceRequest], str]] = {
    "arrival_s": lambda request: _seconds(request.arrival_s),
    "input_tokens": lambda request: str(request.input_tokens),
    "output_tokens": lambda request: str(request.output_tokens),
}
OPTIONAL: dict[str, Callable[[TraceRequest], str]] = {
    "id": lambda request: request.id,
    "tenant": lambda request: request.tenant,
    "prompt": lambda request: request.prompt or "",
    "max_output_tokens": lambda request: str(request.max_output_tokens or ""),
    "priority": lambda request: str(request.priority or ""),
    "ttft_s": lambda request: _seconds(request.slo.ttft_s),
    "tbt_s": lambda request: _seconds(request.slo.tbt_s),
    "deadline_s": lambda request: _seconds(request.slo.deadline_s),
    "session": lambda request: request.session or "",
    "think_s": lambda request: _seconds(request.think_s),
    "prefix_blocks": lambda request: " ".join(map(str, request.prefix_blocks)),
}


def write_trace(requests: Sequence[TraceRequest], path: str | PathLike[str]) -> None:
    """Write a Headway CSV, gzipped if the name ends in `.gz`; equal requests give equal bytes.

    Empty columns are left out. `read_trace` returns the same requests, if the first arrives at 0. Raises TraceError for
    what `read_trace` would refuse: no requests, arrivals out of order, a repeated id, text that UTF-8 cannot hold; and
    for a path that cannot be written.
    """
    target = Path(path)
    _check(requests)
    try:
        data = _table(requests).encode("utf-8")
    except UnicodeEncodeError as error:
        raise TraceError(f"{target}: {error.object[error.start]!r} cannot be written as UTF-8") from None
    _write(target, data)


def write_mooncake(requests: Sequence[TraceRequest], path: str | PathLike[str]) -> None:
    """Write JSON lines with Mooncake's keys, times in milliseconds, gzipped if the name ends in `.gz`.

    Such lines have arrivals, lengths and prefix blocks, and nothing else. Raises TraceError as `write_trace` does.
    """
    _check(requests)
    lines = (
        {
            "timestamp": round(request.arrival_s * TICKS_PER_S["ms"]),
            "input_length": request.input_tokens,
            "output_length": request.output_tokens,
            "hash_ids": request.prefix_blocks,
        }
        for request in requests
    )
    _write(Path(path), b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def _write(target: Path, data: bytes) -> None:
    try:
        target.write_bytes(gzip.compress(data, mtime=0) if target.suffix == ".gz" else data)
    except OSError as error:
        raise TraceError(f"{target} cannot be written: {error.strerror}") from None


def _check(requests: Sequence[TraceRequest]) -> None:
    if not requests:
        raise TraceError("there are no requests to write; accepted: one or more")
    for earlier, later in pairwise(requests):
        if later.arrival_s < earlier.arrival_s:
            raise TraceError(f"request {later.id!r} arrives before {earlier.id!r}; sort them by arrival_s")
    if len({request.id for request in requests}) < len(requests):
        raise TraceError("an id occurs twice; accepted: distinct ids")


def _table(requests: Sequence[TraceRequest]) -> str:
    columns = {name: [_quoted(cell(request)) for request in requests] for name, cell in REQUIRED.items()}
    numbered = all(request.id == str(place) for place, request in enumerate(requests))
    for name, cell in OPTIONAL.items():
        cells = [_quoted(cell(request)) for request in requests]
        if any(cells) and not (name == "id" and numbered):
            columns[name] = cells
    rows = zip(*columns.values(), strict=True)
    return "".join(",".join(row) + "\n" for row in ((*columns,), *rows))


def _quoted(text: str) -> str:
    # Not csv.writer: up to Python 3.12 it leaves a bare carriage return unquoted, which ends the row.
    if any(mark in text for mark in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text
