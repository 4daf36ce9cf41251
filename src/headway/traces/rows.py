"""The rows of a trace file, with the line each starts on, and the format they are in."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from headway.errors import TraceError
from headway.traces.cells import shown
from headway.traces.formats import ACCEPTED, CSV_FORMATS, MOONCAKE, Format

MAX_CELL_CHARACTERS = 1 << 28
"""A prompt of a million tokens is a few million characters; Python's own limit, 131072, is too low."""


def recognise(path: Path, lines: Iterator[str]) -> tuple[Format, Iterator[tuple[int, Any]]]:
    """The format of a file, told by its first line that is not blank, and its rows as (line number, row).

    Raises TraceError, here or while the rows are read, for an empty file, a header that is none of the
    accepted ones, and a row that does not fit its header.
    """
    head = list(_up_to_text(lines))
    if not head:
        raise TraceError(f"{path} is empty; accepted: {ACCEPTED}")
    lines = chain(head, lines)
    if head[-1].lstrip().startswith("{"):
        return MOONCAKE, ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    records = _records(path, lines)
    number, names = next(records, (1, []))
    header = [name.strip() for name in names]
    for form in CSV_FORMATS:
        if set(form.columns) <= set(header):
            _refuse_misspelt(path, number, header, form)
            return form, _cells(path, _distinct(path, number, header), records)
    found = shown(", ".join(header))
    raise TraceError(f"{path}, line {number}: the columns are {found}; accepted: {ACCEPTED}")


def _up_to_text(lines: Iterator[str]) -> Iterator[str]:
    """The blank lines at the beginning, and the first that is not."""
    for line in lines:
        yield line
        if line.strip():
            return


def _records(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(max(csv.field_size_limit(), MAX_CELL_CHARACTERS))
    reader = csv.reader(lines, strict=True)
    while True:
        number = reader.line_num + 1  # a quoted cell may span lines: name the one where its row starts
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise TraceError(f"{path}, line {number}: {error}; accepted: comma-separated values") from None
        if len(record) > 1 or any(map(str.strip, record)):
            yield number, record


def _refuse_misspelt(path: Path, number: int, header: list[str], form: Format) -> None:
    """A misspelt target must not read as no target."""
    for name in header:
        meant = {name.lower(), f"{name.lower()}_s"} & set(form.optional)
        if meant and name not in form.optional:
            raise TraceError(f"{path}, line {number}: column {shown(name)}; accepted: {meant.pop()}")


def _distinct(path: Path, number: int, header: list[str]) -> list[str]:
    for name in header:
        if header.count(name) > 1:
            raise TraceError(
                f"{path}, line {number}: column {shown(name)} occurs twice; accepted: distinct names"
            )
    return header


def _cells(
    path: Path, header: list[str], records: Iterator[tuple[int, list[str]]]
) -> Iterator[tuple[int, dict[str, str]]]:
    for number, record in records:
        if len(record) != len(header):
            found = f"{len(record)} cells were found; accepted: {len(header)}, as in the header"
            raise TraceError(f"{path}, line {number}: {found}")
        yield number, dict(zip(header, record, strict=True))
