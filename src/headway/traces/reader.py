"""Traces in: a file of any accepted format as a list of requests."""

from __future__ import annotations

import csv
import gzip
import logging
import re
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, pairwise
from os import PathLike
from pathlib import Path
from typing import IO, Any

import msgspec

from headway.errors import ConfigError, TraceError
from headway.traces.formats import ACCEPTED, CSV_FORMATS, MOONCAKE, TICKS_PER_S, Cells, Fields, Format, shown
from headway.traces.request import TraceRequest

GZIP_MAGIC = b"\x1f\x8b"
_OTHER_MAGIC = {
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"PK\x03\x04": "zip",
    b"PAR1": "Parquet",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
BYTE_ORDER_MARK = "\ufeff"


def text_lines(path: Path) -> Generator[str, None, None]:
    """The lines of `path` as text, line ends kept, read as they are asked for.

    A gzip file is known by its first bytes; a name in `.gz` without them is an error, since it is most
    often a download that failed. Raises TraceError for what cannot be opened, unpacked or read as UTF-8.
    """
    try:
        with path.open("rb") as raw:
            head = raw.peek(8)
            for magic, name in _OTHER_MAGIC.items():
                if head.startswith(magic):
                    raise TraceError(f"{path} is a {name} file; accepted: text in UTF-8, plain or gzip")
            zipped = head.startswith(GZIP_MAGIC)
            if path.suffix == ".gz" and not zipped:
                raise TraceError(f"{path} is named .gz but does not start as a gzip file does (1f 8b)")
            unpacked: IO[bytes] = gzip.GzipFile(fileobj=raw) if zipped else raw  # type: ignore[assignment]
            yield from _decoded(path, unpacked)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path} is a broken gzip file: {error}") from None
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from None


def _decoded(path: Path, lines: IO[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            found = line[error.start : error.start + 1].hex()
            raise TraceError(f"{path}, line {number}: byte {found} is not UTF-8; accepted: UTF-8") from None
        yield text.removeprefix(BYTE_ORDER_MARK) if number == 1 else text


MAX_CELL_CHARACTERS = 1 << 28
"""A prompt of a million tokens is a few million characters; Python's own limit, 131072, is too low."""
_UNIT = re.compile(r"_(s|ms|us|ns|seconds)$")

Texts = Iterator[tuple[str, str | msgspec.Raw]]
Rows = Iterator[tuple[str, Cells]]
"""Each with its place in the file as an error names it: `line 3`, or `item 2` of an array."""


def recognise(path: Path, lines: Iterator[str]) -> tuple[Format, Rows]:
    """The format of a file, told by its first line that is not blank, and its rows.

    Raises TraceError, here or while the rows are read, for an empty file, a header that is none of the
    accepted ones, and a row that does not fit its header.
    """
    head = list(_up_to_text(lines))
    if not head:
        raise TraceError(f"{path} is empty; accepted: {ACCEPTED}")
    lines = chain(head, lines)
    if head[-1].lstrip().startswith("["):
        return _of_objects(path, _items(path, "".join(lines)))
    if head[-1].lstrip().startswith("{"):
        return _of_objects(
            path, ((f"line {number}", line) for number, line in enumerate(lines, 1) if line.strip())
        )
    records = _records(path, lines)
    place, names = next(records, ("line 1", []))
    header = [name.strip() for name in names]
    form = _form(path, place, header, "columns", CSV_FORMATS)
    _refuse_misspelt(path, place, header, form)
    return form, _cells(path, _distinct(path, place, header), records)


def _form(path: Path, place: str, names: Iterable[str], what: str, forms: Iterable[Format]) -> Format:
    for form in forms:
        if set(form.columns) <= set(names):
            return form
    raise TraceError(f"{path}, {place}: the {what} are {shown(', '.join(names))}; accepted: {ACCEPTED}")


def _items(path: Path, text: str) -> Texts:
    try:
        items = msgspec.json.decode(text, type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        raise TraceError(f"{path} is no array of JSON objects: {error}") from None
    return ((f"item {number}", item) for number, item in enumerate(items, 1))


def _of_objects(path: Path, texts: Texts) -> tuple[Format, Rows]:
    """The format of JSON objects, told by the keys of the first, and their rows."""
    first = next(texts, None)
    if first is None:
        raise TraceError(f"{path} is empty; accepted: {ACCEPTED}")
    form = _form(path, first[0], _object(path, *first), "keys", (*CSV_FORMATS, MOONCAKE))
    rows = _object_cells(path, form, chain([first], texts))
    return replace(form, name=form.name.replace("CSV", "JSON")), rows


def _object(path: Path, place: str, text: str | msgspec.Raw) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise TraceError(
            f"{path}, {place}: {error}; accepted: a JSON object a line, or an array of them"
        ) from None


def _object_cells(path: Path, form: Format, texts: Texts) -> Rows:
    """The values of each object as the cells of a CSV, those under keys that the format does not have as empty ones."""
    known = {*form.columns, *form.optional}
    for place, text in texts:
        found = _object(path, place, text)
        _refuse_misspelt(path, place, list(found), form)
        for column in form.columns:
            if column not in found:
                raise TraceError(f"{path}, {place}: there is no {column!r}; accepted: {form}")
        yield place, {key: _cell(path, place, key, found[key]) if key in known else "" for key in found}


def _cell(path: Path, place: str, key: str, value: object) -> str:
    if key in ("prefix_blocks", "hash_ids") and isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, list | dict):
        raise TraceError(f"{path}, {place}: {key} is {shown(str(value))}; accepted: a number or text")
    return "" if value is None else str(value)


def _up_to_text(lines: Iterator[str]) -> Iterator[str]:
    """The blank lines at the beginning, and the first that is not."""
    for line in lines:
        yield line
        if line.strip():
            return


def _records(path: Path, lines: Iterator[str]) -> Iterator[tuple[str, list[str]]]:
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
            raise TraceError(f"{path}, {place}: {error}; accepted: comma-separated values") from None
        if len(record) > 1 or any(map(str.strip, record)):
            yield place, record


def _refuse_misspelt(path: Path, place: str, header: list[str], form: Format) -> None:
    """A misspelt target must not read as no target."""
    for name in header:
        stem = _UNIT.sub("", name.lower())
        meant = {stem, f"{stem}_s"} & set(form.optional)
        if meant and name not in form.optional:
            raise TraceError(f"{path}, {place}: column {shown(name)}; accepted: {meant.pop()}")


def _distinct(path: Path, place: str, header: list[str]) -> list[str]:
    for name in header:
        if header.count(name) > 1:
            raise TraceError(f"{path}, {place}: column {shown(name)} occurs twice; accepted: distinct names")
    return header


def _cells(
    path: Path, header: list[str], records: Iterator[tuple[str, list[str]]]
) -> Iterator[tuple[str, dict[str, str]]]:
    for place, record in records:
        if len(record) != len(header):
            found = f"{len(record)} cells were found; accepted: {len(header)}, as in the header"
            raise TraceError(f"{path}, {place}: {found}")
        yield place, dict(zip(header, record, strict=True))


PLAUSIBLE_GAP_S = 0.01, 3600.0
"""Mean gaps between arrivals of a trace whose unit of time is only assumed; outside, the unit is another."""
_DATES_S = 1e9, 4e9
"""Seconds since 1970 of the years 2001 to 2096: a first arrival there is a date, which tells its unit."""

logger = logging.getLogger(__name__)


def read_trace(
    path: str | PathLike[str],
    *,
    limit: int | None = None,
    drop_empty: bool = False,
    time_unit: str | None = None,
) -> list[TraceRequest]:
    """The requests of a trace file in order of arrival, the first at 0 s.

    The format is told from the content: Headway CSV, Mooncake JSON lines, Azure LLM CSV and BurstGPT CSV as published,
    each plain or gzip, or objects with the same keys, one a line or in an array. `limit` stops after that many
    requests, and nothing behind them is looked at. Requests without input or output are left out, with one warning
    for a file that counts them, from BurstGPT always (they are its failures) and elsewhere only if `drop_empty`. Rows
    out of order are sorted, with a warning. Where a trace has no `id`, a request's id is its place in the result.

    `time_unit` ("s", "ms", "us", "ns") is the unit of arrivals where the file does not tell it; None is the format's
    own, which is refused where arrivals would be closer together or further apart than `PLAUSIBLE_GAP_S`, are parts of
    a millisecond, or begin at a date in another unit. What was understood is logged at level INFO.

    Raises TraceError naming the file, the place in it, what was found and what is accepted.
    """
    source = Path(path)
    if limit is not None and limit < 1:
        raise TraceError.of("limit", limit, "1 or more")
    if time_unit is not None and time_unit not in TICKS_PER_S:
        raise TraceError.of("time_unit", repr(time_unit), f"{', '.join(TICKS_PER_S)}")
    with closing(text_lines(source)) as lines:
        form, rows = recognise(source, lines)
        taken = _Intake(form, drop_empty or form.drops_empty)
        for place, row in rows:
            try:
                taken.add(place, *form.parse(row))
            except (TraceError, ConfigError) as error:
                raise TraceError(f"{source}, {place}: {error}") from None
            if len(taken.rows) == limit:
                break
    if not taken.rows:
        raise TraceError(f"{source} has no requests with input and output; accepted: one or more")
    is_sorted = taken.sort()
    unit = _time_unit(source, taken, time_unit)
    requests = taken.requests(source, TICKS_PER_S[unit])
    if taken.dropped:
        _warn("%s: left out %s requests with 0 input or output tokens", source, taken.dropped)
    if not is_sorted:
        _warn("%s: rows were not in order of arrival; sorted by %s", source, form.columns[0])
    tell_understood(str(source), requests, f"{form.name}, {form.columns[0]}: {form.told_unit or unit}")
    return requests


def tell_understood(source: str, requests: list[TraceRequest], form: str) -> None:
    """Log at level INFO how many requests a source has, over what time, how many a second, and in what form."""
    span_s = requests[-1].arrival_s
    rate = f"over {span_s:,.6g} s, {len(requests) / span_s:.3g} a second" if span_s else "all at once"
    count = f"{len(requests):,} request{'s' if len(requests) > 1 else ''}"
    logger.info("%s: %s %s (%s)", source, count, rate, form)


@cache
def _warn(message: str, source: Path, found: object) -> None:
    """Once for a file: a study reads its trace for every run."""
    logger.warning(message, source, found)


def _time_unit(source: Path, taken: _Intake, asked: str | None) -> str:
    """The unit of a file's arrivals: as it tells, as asked for, or as its format usually has it.

    Raises TraceError for a unit other than the file tells, and for a usual one that its arrivals speak against.
    """
    form = taken.form
    if form.told_unit and asked not in (None, form.told_unit):
        raise TraceError.of(
            "time_unit",
            f"{asked!r} for {source}, whose {form.columns[0]} tells its unit ({form.told_unit})",
            "a trace that does not tell it",
        )
    unit = asked or form.time_unit
    doubt = "" if asked else _doubt(taken, unit)
    if doubt:
        told = "" if form.told_unit else f", or the unit told by --time-unit {'|'.join(TICKS_PER_S)}"
        raise TraceError(f"{source}: {form.columns[0]} is taken for {unit}, and {doubt}{told}")
    return unit


def _doubt(taken: _Intake, unit: str) -> str:
    """What speaks against arrivals in this unit, empty if nothing does. For sorted rows.

    A date in another unit does; and, if the file does not tell its unit, an implausible gap or a part of a millisecond.
    """
    first = taken.rows[0][0]
    for other, per_s in TICKS_PER_S.items():
        if other != unit and _DATES_S[0] <= first / per_s < _DATES_S[1]:
            return f"the first, {first}, is a date in {other} since 1970; accepted: {unit}"
    if taken.form.told_unit:
        return ""
    gap_s = taken.mean_gap() / TICKS_PER_S[unit]
    least_s, most_s = PLAUSIBLE_GAP_S
    if gap_s and not least_s <= gap_s <= most_s:
        return f"arrivals would be {gap_s:.3g} s apart in the mean; accepted: {least_s:g} to {most_s:g} s"
    part = next((ticks for ticks, _, _ in taken.rows if ticks % 1), None)
    if part is not None and unit != "s":
        return f"{part} is no whole number of them; accepted: whole {unit}"
    return ""


@dataclass(slots=True)
class _Intake:
    """Rows taken so far, each with its arrival in ticks and its place in the file."""

    form: Format
    drop_empty: bool
    rows: list[tuple[float, str, Fields]] = field(default_factory=list)
    dropped: int = 0

    def add(self, place: str, ticks: float, fields: Fields) -> None:
        """Take a row in, or count it as left out."""
        if self.drop_empty and 0 in (fields["input_tokens"], fields["output_tokens"]):
            self.dropped += 1
            return
        _, of_input, of_output = self.form.columns
        for column, tokens in ((of_input, fields["input_tokens"]), (of_output, fields["output_tokens"])):
            if tokens < 1:
                raise TraceError.of(column, tokens, "1 or more")
        if self.rows and ticks == 0:
            self._check_clock(fields.get("session"))
        self.rows.append((ticks, place, fields))

    def _check_clock(self, session: str | None) -> None:
        last_ticks, _, last = self.rows[-1]
        if last_ticks > 0 and session != last.get("session"):
            raise TraceError(
                f"time starts again at 0 with session {shown(session or '')}; sessions have their own clocks here: "
                "superpose them on one clock first"
            )

    def sort(self) -> bool:
        """Put the rows in order of arrival; whether they were in it."""
        were = all(earlier[0] <= later[0] for earlier, later in pairwise(self.rows))
        self.rows.sort(key=lambda row: row[0])
        return were

    def mean_gap(self) -> float:
        """Ticks between one time of arrival and the next in the mean; 0 if all arrive at once. For sorted rows."""
        times = {ticks for ticks, _, _ in self.rows}
        return (self.rows[-1][0] - self.rows[0][0]) / max(1, len(times) - 1)

    def requests(self, source: Path, ticks_per_s: int) -> list[TraceRequest]:
        """The sorted rows as requests. Raises TraceError for what no request can have and for an id used twice."""
        requests: list[TraceRequest] = []
        ids: set[str] = set()
        for ticks, place, fields in self.rows:
            name = fields.setdefault("id", str(len(requests)))
            try:
                if name in ids:
                    raise TraceError(f"id {shown(name)} occurs twice; accepted: distinct ids")
                requests.append(TraceRequest(arrival_s=(ticks - self.rows[0][0]) / ticks_per_s, **fields))
            except (TraceError, ConfigError) as error:
                raise TraceError(f"{source}, {place}: {error}") from None
            ids.add(name)
        return requests
