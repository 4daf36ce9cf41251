"""A study as text: for a terminal, as Markdown, and each table as CSV."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from headway.results.study import Study, StudyTable
from headway.results.tables import wrap_columns

_GAP = 3  # blanks between two columns
_EDGES = 4  # blanks left and right of a table


def terminal_study(study: Study) -> RenderableType:
    """The tables that are not details, and what is said of them, for a terminal."""
    shown: list[RenderableType] = []
    for part in study.parts:
        shown += [Text(f"\n{part.title}", style="bold"), *map(Text, part.text)]
        shown += [item for table in part.tables if not table.detail for item in _terminal_table(table)]
    return Group(*shown)


def _terminal_table(table: StudyTable) -> list[RenderableType]:
    lines = [f"{table.title} [{table.measured_on}]", *filter(None, [table.note])]
    return [Text(""), *map(Text, lines), _TerminalTable(table)]


@dataclass(frozen=True, slots=True)
class _TerminalTable:
    """A table for a terminal; what is too wide for it goes on in another below, under the same first columns."""

    table: StudyTable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = self.table.text_rows()
        for columns in self._parts(rows, options.max_width - _EDGES):
            shown = Table(box=SIMPLE_HEAD, header_style="")
            for number in columns:
                justify: Literal["left", "right"] = "left" if number < self.table.keys else "right"
                shown.add_column(Text(self.table.headings[number]), justify=justify, vertical="bottom")
            for row in rows:
                shown.add_row(*(Text(row[number]) for number in columns))
            yield shown

    def _parts(self, rows: Sequence[Sequence[str]], room: int) -> list[list[int]]:
        """Column numbers of each table, those of the first columns in all."""
        widths = [
            _GAP + max(map(len, [*heading.split(), *(row[number] for row in rows)]))
            for number, heading in enumerate(self.table.headings)
        ]
        keys = self.table.keys
        parts = wrap_columns(widths[keys:], room - sum(widths[:keys]))
        return [[*range(keys), *(keys + number for number in part)] for part in parts]


def markdown(study: Study) -> str:
    """The whole study as a Markdown document, without the charts."""
    lines = [f"# {study.title}", ""]
    lines += [f"- {what}: {value}" for what, value in study.facts]
    for part in study.parts:
        lines += ["", f"## {part.title}"]
        for sentence in part.text:
            lines += ["", sentence]
        for table in part.tables:
            lines += ["", f"### {table.title}", "", f"*{table.measured_on}*", ""]
            lines += [table.note, ""] if table.note else []
            lines += _markdown_rows(table)
    return "\n".join(lines) + "\n"


def _markdown_rows(table: StudyTable) -> list[str]:
    rule = ["---" if number < table.keys else "---:" for number in range(len(table.headings))]
    rows = [table.headings, rule, *table.text_rows()]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]


def csv_text(table: StudyTable) -> str:
    """Headings and values of one table; an empty cell where there is none, and how it was measured in the last."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*table.headings, "measured on"])
    for row in table.rows:
        writer.writerow([*("" if value is None else value for value in row), table.measured_on])
    return out.getvalue()
