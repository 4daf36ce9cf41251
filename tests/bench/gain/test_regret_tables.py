"""The tables of docs/regret.md, by hand."""

from __future__ import annotations

from collections.abc import Sequence

from bench.gain.regret_runs import Cell
from bench.gain.regret_tables import CellFindings, by_cell, by_load, tables

ORACLE = "shortest-oracle"


def row(cell: Cell, **values: Sequence[float | None]) -> dict[str, object]:
    """`headway` beside `vllm`, `sjf` and an oracle, whose name is no keyword."""
    named = {ORACLE if name == "oracle" else name: each for name, each in values.items()}
    return CellFindings(cell, "headway", frozenset({"vllm", "sjf"}), frozenset({ORACLE}), named).row()


ROWS = [
    row(Cell("chat", "a100", 0.5, "none"), headway=[10.1], vllm=[10.0], sjf=[10.2], oracle=[9.0]),
    row(Cell("chat", "a100", 1.0, "none"), headway=[40.0], vllm=[60.0], sjf=[50.0], oracle=[30.0]),
    row(Cell("chat", "a100", 1.0, "one"), headway=[0.7], vllm=[0.1], sjf=[0.75], oracle=[0.8]),
    row(Cell("code", "a100", 1.0, "one"), headway=[0.9], vllm=[0.1], sjf=[0.6], oracle=[0.9]),
    row(Cell("code", "h100", 1.0, "one"), headway=[0.5], vllm=[None], sjf=[None], oracle=[None]),
]


def test_losses_by_load() -> None:
    lines = list(by_load(ROWS[:4]))
    assert lines[2:] == [
        "| 0.5 | 1.0% / 1.0% / 1.0%; 1 of 1 | – |",
        # A fifth less than `sjf`; 0.05 behind it, and 0.3 ahead: within the bar is one of two.
        "| 1 | -20.0% / -20.0% / -20.0%; 1 of 1 | 0.050 / -0.125 / -0.300; 1 of 2 |",
    ]


def test_a_line_for_each_workload_and_load() -> None:
    assert list(by_cell("headway", ROWS[:4])) == [
        "| workload | load | no targets: mean JCT (s) | one class: goodput |",
        "|---|---|---|---|",
        "| `chat` | 0.5 | **10.1** / 10 / 10 `vllm` / 9 | – |",
        "| `chat` | 1 | **40** / 60 / 50 `sjf` / 30 | 0.700 / 0.100 / 0.750 `sjf` / 0.800 |",
        "| `code` | 1 | – | **0.900** / 0.100 / 0.600 `sjf` / 0.900 |",
    ]


def test_machines_have_tables_of_their_own_and_who_has_no_value_a_dash() -> None:
    parts = tables("headway", ROWS).split("\n\n")
    assert [parts[0], parts[3]] == ["`a100`", "`h100`"]
    assert parts[5].endswith("| `code` | 1 | 0.500 / – / – / – |")
    assert len(parts[4].splitlines()) == 2  # no loss, so no line
