"""The rows of a trace file, with the place of each, and the format they are in."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from headway.errors import TraceError
from headway.traces.cells import Cells, shown
from headway.traces.formats import ACCEPTED, CSV_FORMATS, MOONCAKE, Format

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
