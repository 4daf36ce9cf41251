"""Finds the format of a trace file, and reads its rows from whatever container."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from io import StringIO
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec

from headway.errors import TraceError
from headway.traces.cells import Cells, is_date, shown, ticks, unit_of_date
from headway.traces.cells import dates as read_date
from headway.traces.exports import (
    HTTP_LOG,
    LOG_LINE,
    VLLM_LOG_LACKS,
    Found,
    access_log,
    flat,
    known_otherwise,
    unfolded,
    vllm_log,
)
from headway.traces.files import is_parquet, parquet_rows, text_lines
from headway.traces.formats import ACCEPTED, AIPERF, FORMATS, OPEN_TELEMETRY, VLLM_LOG, Format

Row = tuple[str, Cells | TraceError]
"""The position of a row as errors name it (`line 3`, `item 2` of an array), and its cells or its fault."""
Rows = Iterator[Row]

LOOKED_AT = 100
"""Rows examined for the format: the first may be broken, or a request that failed."""
MAX_CELL_CHARACTERS = 1 << 28
"""A prompt of a million tokens is a few million characters; Python's own limit, 131072, is too low."""
_UNIT = re.compile(r"_(s|ms|us|ns|seconds)$")
_LAST_COMMA = re.compile(r",\s*\]\s*\Z")


@contextmanager
def opened(path: Path) -> Iterator[tuple[Format, Rows]]:
    """The format of a file and its rows, read lazily.

    Raises TraceError, here or while rows are read, for a file of no accepted format and for faults that concern more
    than a row; the fault of a single row takes the place of its cells.
    """
    if is_parquet(path):
        with closing(parquet_rows(path)) as table:  # type: ignore[type-var]
            yield _of_objects(
                path, ((f"row {number}", row) for number, row in enumerate(table, 1)), "Parquet"
            )
        return
    with closing(text_lines(path)) as lines:
        form, rows = _of_text(path, lines)
        yield form, rows


def _of_text(path: Path, lines: Generator[str, None, None]) -> tuple[Format, Rows]:
    head = list(_up_to_text(lines))
    if not head:
        raise TraceError(f"{path} is empty; accepted: {ACCEPTED}")
    first = head[-1].lstrip()
    if first.startswith("["):
        return _of_objects(path, _items(path, "".join(chain(head, lines))), "JSON")
    if first.startswith("{"):
        return _of_objects(path, _objects(head, lines), "JSON lines")
    if form_of(re.split(r"\W*,\W*", first.strip(' "\r\n'))) is None:
        head += islice(lines, LOOKED_AT)
        if any(map(LOG_LINE.search, head)):
            return _of_log(path, chain(head, lines))
        if any(map(HTTP_LOG.search, head)):
            raise TraceError(f"{path} is a log of HTTP requests without their tokens; accepted: {ACCEPTED}")
    return _of_table(path, chain(head, lines))


def form_of(names: Collection[str]) -> Format | None:
    """The format with these columns or keys; None if there is none."""
    return next((form for form in FORMATS if form.fits(names)), None) or access_log(names)


def _up_to_text(lines: Iterator[str]) -> Iterator[str]:
    """The leading blank lines, and the first other line."""
    for line in lines:
        yield line
        if line.strip():
            return


def _of_log(path: Path, lines: Iterator[str]) -> tuple[Format, Rows]:
    rows = vllm_log(lines)
    if not any(row["prompt_token_ids"] for _, row in rows):
        raise TraceError(f"{path} is a vLLM log without token ids; {VLLM_LOG_LACKS}")
    return VLLM_LOG, iter(rows)


# ---- tables ----------------------------------------------------------------------------------------------


def _of_table(path: Path, lines: Iterator[str]) -> tuple[Format, Rows]:
    records = _records(path, lines)
    place, names = next(records, ("line 1", []))
    if isinstance(names, TraceError):
        raise TraceError(f"{path}, {place}: {names}")
    header = [name.strip() for name in names]
    while header and not header[-1]:
        header.pop()
    form = form_of(header)
    if form is None:
        raise TraceError(f"{path}, {place}: the columns are {shown(', '.join(header))}; accepted: {ACCEPTED}")
    _refuse_misspelt(path, place, header, form)
    for name in filter(None, header):
        if header.count(name) > 1:
            raise TraceError(f"{path}, {place}: column {shown(name)} occurs twice; accepted: distinct names")
    return _dated(form, _cells(header, records), "CSV")


def _records(path: Path, lines: Iterator[str]) -> Iterator[tuple[str, list[str] | TraceError]]:
    csv.field_size_limit(max(csv.field_size_limit(), MAX_CELL_CHARACTERS))
    reader = csv.reader(lines, strict=True)
    while True:
        place = (
            f"line {reader.line_num + 1}"  # a quoted cell may span lines: name the one where its row starts
        )
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            fault = TraceError(f"{error}; accepted: comma-separated values")
            if "end of data" in str(error):  # a quote that is never closed contains all following rows
                raise TraceError(f"{path}, {place}: {fault}") from None
            yield place, fault
            continue
        if any(map(str.strip, record)):
            yield place, record


def _cells(header: list[str], records: Iterator[tuple[str, list[str] | TraceError]]) -> Rows:
    for place, record in records:
        if isinstance(record, TraceError):
            yield place, record
            continue
        while len(record) > len(header) and not record[-1].strip():
            record.pop()
        if [cell.strip() for cell in record] == header:
            yield place, TraceError("the header again; accepted: one, at the top")
        elif len(record) != len(header):
            found = f"{len(record)} cells were found; accepted: {len(header)}, as in the header"
            yield place, TraceError(found)
        else:
            yield place, dict(zip(header, record, strict=True))


def _refuse_misspelt(path: Path, place: str, header: Iterable[str], form: Format) -> None:
    """Raise for an unknown column that resembles a target: a misspelt target must not count as no target."""
    for name in header:
        stem = _UNIT.sub("", name.lower())
        meant = {stem, f"{stem}_s"} & set(form.optional)
        if meant and name not in form.optional:
            raise TraceError(f"{path}, {place}: column {shown(name)}; accepted: {meant.pop()}")


# ---- JSON ------------------------------------------------------------------------------------------------


def _value(text: str | msgspec.Raw) -> Any:
    """Parse JSON, with NaN and infinities as Python writes them. Raises TraceError for other text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        try:
            return json.loads(text if isinstance(text, str) else bytes(text))
        except (ValueError, RecursionError):
            raise TraceError(f"{error}; accepted: a JSON object a line, or an array of them") from None


def _tried(text: str | msgspec.Raw) -> Any:
    try:
        return _value(text)
    except TraceError as error:
        return error


def _items(path: Path, text: str) -> Iterator[Found]:
    text = _LAST_COMMA.sub("]", text)
    try:
        items = msgspec.json.decode(text, type=list[msgspec.Raw])
        return ((f"item {number}", _tried(item)) for number, item in enumerate(items, 1))
    except (msgspec.DecodeError, RecursionError) as error:
        values = _tried(text)
        if not isinstance(values, list):
            raise TraceError(f"{path} is no array of JSON objects: {error}") from None
        return ((f"item {number}", value) for number, value in enumerate(values, 1))


def _objects(head: list[str], lines: Iterator[str]) -> Iterator[Found]:
    """One JSON object a line, or consecutive objects of several lines each."""
    if isinstance(_tried(_without_comma(head[-1])), TraceError):
        text = "".join(chain(head, lines))
        try:
            yield from list(_concatenated(text))
            return
        except (ValueError, RecursionError):
            head, lines = [], StringIO(text)
    for number, line in enumerate(chain(head, lines), 1):
        if line.strip():
            yield f"line {number}", _tried(_without_comma(line))


def _without_comma(line: str) -> str:
    return line.rstrip().removesuffix(",")


_BETWEEN = re.compile(r"[\s,]*")


def _concatenated(text: str) -> Iterator[Found]:
    """Consecutive values, of any number of lines each. Raises ValueError for other text."""
    decoder, number, at = json.JSONDecoder(), 0, _BETWEEN.match(text).end()  # type: ignore[union-attr]
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
        number += 1
        yield f"object {number}", value


def _of_objects(path: Path, found: Iterator[Found], kind: str) -> tuple[Format, Rows]:
    """The format of JSON objects, by the first that has the keys of one, and their rows."""
    first = next(found, None)
    if first is None:
        raise TraceError(f"{path} is empty; accepted: {ACCEPTED}")
    objects = chain.from_iterable(unfolded(place, value) for place, value in chain([first], found))
    seen = []
    for each in islice(objects, LOOKED_AT):
        seen.append(each)
        if isinstance(each[1], dict) and (form := form_of(flat(each[1]))):
            rows = _object_cells(path, form, chain(seen, objects))
            return _dated(form, PREPARED.get(form, iter)(rows), kind)
    raise TraceError(f"{path}, {_no_trace(seen or [first], first)}")


def _no_trace(seen: list[Found], first: Found) -> str:
    """What is at the beginning of JSON that is no trace: only faults, a known format, or an object's keys."""
    place, value = next((each for each in seen if isinstance(each[1], dict)), seen[0])
    if isinstance(value, TraceError):
        return f"{place}: {value}"
    for where, known in (first, (place, value)):
        if isinstance(known, dict) and (said := known_otherwise(known)):
            return f"{where}: {said}; accepted: {ACCEPTED}"
    return f"{place}: the keys are {shown(', '.join(map(str, value)))}; accepted: {ACCEPTED}"


def _object_cells(path: Path, form: Format, found: Iterator[Found]) -> Rows:
    """The values of each object as cells of a CSV; values under unknown keys are empty."""
    known = {*form.columns, *form.optional}
    nothing = dict.fromkeys(form.columns, "")
    for place, value in found:
        if isinstance(value, TraceError):
            yield place, value
            continue
        values = flat(value)
        _refuse_misspelt(path, place, values, form)
        try:
            yield place, nothing | {key: _cell(key, values[key]) if key in known else "" for key in values}
        except TraceError as error:
            yield place, error


_LISTS = re.compile(r"prefix_blocks|hash_ids|(.*\.)?(messages|input|prompt_token_ids)|.+\.prompt")


def _cell(key: str, value: object) -> str:
    if isinstance(value, list) and _LISTS.fullmatch(key):
        numbers = all(isinstance(item, int) for item in value)
        return " ".join(map(str, value)) if numbers else json.dumps(value)
    if isinstance(value, list | dict):
        raise TraceError(f"{key} is {shown(str(value))}; accepted: a number or text")
    return "" if value is None else str(value)


# ---- relations between rows ---------------------------------------------------------------------------------


def _dated(form: Format, rows: Rows, kind: str) -> tuple[Format, Rows]:
    """The format under its name for such a file, with dates as times if the first time is a date."""
    form = replace(form, name=f"{form.name} {kind}")
    seen = []
    for row in islice(rows, LOOKED_AT):
        seen.append(row)
        if not isinstance(row[1], TraceError):
            time = row[1][form.columns[0]]
            if is_date(time) or (not form.time_unit and unit_of_date(time)):
                form = replace(form, time_unit="ns", told_unit="dates", read_time=read_date)
            break
    return form, chain(seen, rows)


def with_delays(rows: Rows) -> Rows:
    """aiperf's rows; those without a timestamp arrive their delay after their session's previous row."""
    last: dict[str, float] = {}
    for place, cells in rows:
        if isinstance(cells, TraceError):
            yield place, cells
            continue
        session = cells.get("session_id", "")
        try:
            if not cells["timestamp"]:
                delay = ticks(cells, "delay") if cells.get("delay") else 0
                cells = {**cells, "timestamp": str(last.get(session, 0) + delay)}
            last[session] = ticks(cells, "timestamp")
        except TraceError as error:
            yield place, error
            continue
        yield place, cells


def outermost(rows: Rows) -> Rows:
    """The spans that are in no other: a client's and its server's belong to one request."""
    spans = list(rows)
    known = {
        cells["spanId"] for _, cells in spans if not isinstance(cells, TraceError) and cells.get("spanId")
    }
    for place, cells in spans:
        is_inner = not isinstance(cells, TraceError) and cells.get("parentSpanId") in known
        yield place, TraceError("a span within that of the same request") if is_inner else cells


PREPARED: dict[Format, Callable[[Rows], Rows]] = {AIPERF: with_delays, OPEN_TELEMETRY: outermost}
