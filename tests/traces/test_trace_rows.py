"""One odd row costs one row, whatever holds the rows."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import TraceError
from headway.traces import TraceRequest, read_trace

KEYS = ("arrival_s", "input_tokens", "output_tokens", "id", "session")
Row = Sequence[object]
GOOD: tuple[Row, Row] = ((0, 10, 3, "a", ""), (1.5, 20, 4, "b", "s"))
READ = [TraceRequest("a", 0.0, 10, 3), TraceRequest("b", 1.5, 20, 4, session="s")]


def _table(rows: Sequence[Row]) -> str:
    return "\n".join(",".join("" if cell is None else str(cell) for cell in row) for row in (KEYS, *rows))


def _objects(rows: Sequence[Row]) -> list[dict[str, object]]:
    return [dict(zip(KEYS, row, strict=True)) for row in rows]


def _split(rows: Sequence[Row]) -> str:
    return json.dumps({"columns": KEYS, "index": list(range(len(rows))), "data": rows})


HELD: dict[str, Callable[[Sequence[Row]], str]] = {
    "CSV": _table,
    "CSV with CRLF": lambda rows: _table(rows).replace("\n", "\r\n") + "\r\n",
    "CSV with a byte order mark": lambda rows: "\ufeff" + _table(rows),
    "CSV with trailing commas": lambda rows: _table(rows).replace("\n", ",,\n") + ",,\n",
    "CSV with blank lines": lambda rows: _table(rows).replace("\n", "\n\n,,,,\n \n"),
    "CSV with quoted cells": lambda rows: '"' + _table(rows).replace(",", '","').replace("\n", '"\n"') + '"',
    "lines": lambda rows: "\n".join(map(json.dumps, _objects(rows))),
    "lines with commas": lambda rows: ",\n".join(map(json.dumps, _objects(rows))) + ",",
    "objects of many lines": lambda rows: "\n".join(json.dumps(each, indent=2) for each in _objects(rows)),
    "array": lambda rows: json.dumps(_objects(rows)),
    "array of many lines": lambda rows: json.dumps(_objects(rows), indent=1),
    "array with a last comma": lambda rows: json.dumps(_objects(rows)).removesuffix("]") + ",\n]\n",
    "key requests": lambda rows: json.dumps({"version": 1, "requests": _objects(rows)}),
    "key data": lambda rows: json.dumps({"data": _objects(rows), "version": 1}, indent=1),
    "columns": lambda rows: json.dumps(dict(zip(KEYS, zip(*rows, strict=True), strict=True))),
    "columns by row": lambda rows: json.dumps(
        {key: {str(n): row[i] for n, row in enumerate(rows)} for i, key in enumerate(KEYS)}
    ),
    "split": _split,
}


@pytest.mark.parametrize("held", HELD)
def test_rows_are_read_whatever_holds_them(
    held: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "trace"
    path.write_text(HELD[held](GOOD))
    with caplog.at_level(logging.WARNING):
        assert read_trace(path, strict=True) == READ
    assert not caplog.messages


ODD: dict[str, tuple[Row, str]] = {
    "no input": ((1, 0, 9, "x", ""), "input_tokens is not 1 or more"),
    "negative output": ((1, 9, -1, "x", ""), "output_tokens is not 1 or more"),
    "half a token": ((1, 9.5, 1, "x", ""), "input_tokens is not a whole number"),
    "not a number": ((1, float("nan"), 1, "x", ""), "input_tokens is not a whole number"),
    "time that is none": ((float("nan"), 1, 1, "x", ""), "arrival_s is not a finite number"),
    "negative time": ((-1, 1, 1, "x", ""), "arrival_s is not a time, 0 or more"),
    "missing": ((1, None, 1, "x", ""), "input_tokens is not a whole number"),
    "text": ((1, 1, "many", "x", ""), "output_tokens is not a whole number"),
    "id again": ((1, 1, 1, "a", ""), "id 'a' occurs twice"),
    "no id": ((1, 1, 1, "", ""), "id is not text that is not empty"),
}


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_row_costs_one_row(
    held: str, odd: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    row, reason = ODD[odd]
    path = tmp_path / "trace"
    path.write_text(HELD[held]((GOOD[0], row, GOOD[1], row)))
    with caplog.at_level(logging.WARNING):
        assert read_trace(path) == READ
    [said] = caplog.messages
    assert said.startswith(f"{path}: left out 2 of 4 rows: {reason} (2, first ")
    with pytest.raises(TraceError, match=f"^{path}, "):
        read_trace(path, strict=True)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('1,1,"2"3,x,', "',' expected after '\"'"),
        ("1,1", "2 cells were found"),
        (",".join(KEYS), "the header again"),
        ("1,1,1,x,,more", "6 cells were found"),
    ],
)
def test_a_broken_line_of_a_table_costs_one_row(
    line: str, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, *others = _table(GOOD).splitlines()
    path = tmp_path / "trace.csv"
    path.write_text("\n".join((first, line, *others)))
    with caplog.at_level(logging.WARNING):
        assert read_trace(path) == READ
    assert caplog.messages == [f"{path}: left out 1 of 3 rows: {reason} (1, first line 2)"]


@pytest.mark.parametrize(
    "line", ['{"arrival_s": 0, "inp', "3", '"text"', "null", "[1]", '{"error": "timeout"}']
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_broken_line_of_objects_costs_one_row(line: str, place: int, tmp_path: Path) -> None:
    lines = list(map(json.dumps, _objects(GOOD)))
    lines.insert(place, line)
    path = tmp_path / "trace.jsonl"
    if place == 0 and not line.startswith("{"):
        pytest.skip("a file is known by how it begins")
    path.write_text("\n".join(lines))
    assert read_trace(path) == READ
    with pytest.raises(TraceError, match=rf", line {place + 1}: "):
        read_trace(path, strict=True)


def test_whole_numbers_of_tables_with_gaps_are_read(tmp_path: Path) -> None:
    path = tmp_path / "burst.csv"
    path.write_text("Timestamp,Request tokens,Response tokens\n5.0,472.0,18.0\n45.0,9,230.00\n")
    assert [(each.input_tokens, each.output_tokens) for each in read_trace(path, strict=True)] == [
        (472, 18),
        (9, 230),
    ]


def test_rows_that_all_are_odd_are_refused_with_the_reasons(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,0,1\n1,0,1\n2,1,x\n")
    of_input = r"input_tokens is not 1 or more \(2, first line 2\)"
    reasons = rf"{of_input}, output_tokens is not a whole number \(1, first line 4\)"
    with pytest.raises(
        TraceError, match=f"has no requests with input and output: {reasons}; accepted: one or more"
    ):
        read_trace(path)


def test_unsorted_rows_are_refused_if_strict(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n1,1,1\n0,1,1\n")
    with pytest.raises(
        TraceError, match="rows are not in order of arrival_s; accepted: sorted rows, or no --strict"
    ):
        read_trace(path, strict=True)


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(-2, 9), st.integers(-2, 9)), min_size=1, max_size=12
    ),
    held=st.sampled_from(["CSV", "lines", "array", "key data", "columns", "split"]),
)
def test_every_row_is_read_or_counted(
    rows: list[tuple[int, int, int]], held: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("rows") / "trace"
    path.write_text(HELD[held]([(*row, f"row-{number}", "") for number, row in enumerate(rows)]))
    good = sorted((row for row in rows if min(row[1:]) >= 1), key=lambda row: row[0])
    if not good:
        with pytest.raises(TraceError, match="has no requests"):
            read_trace(path)
        return
    found = [(each.arrival_s, each.input_tokens, each.output_tokens) for each in read_trace(path)]
    assert found == [(row[0] - good[0][0], *row[1:]) for row in good]
