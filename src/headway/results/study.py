"""A paper's experiments repeated: tables and charts with the paper's numbers beside ours, as text, page and files."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Literal

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from headway.errors import ConfigError
from headway.results.report import page_template
from headway.results.tables import EDGES, GAP, MISSING, wrap_columns
from headway.whole_file import write_whole

Value = str | int | float | None
"""The content of a cell; None is shown as a dash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTable:
    """Rows under headings; `measured_on` says whether they were simulated or measured, and on what.

    `note` explains how to read them. Fractions are shown with `decimals` digits, and written to CSV in full. `name` is
    the stem of its file. The first `keys` columns identify a row. A `detail` is folded on the page.
    """

    name: str
    title: str
    measured_on: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Value]]
    note: str = ""
    decimals: int = 2
    keys: int = 1
    detail: bool = False

    def text_rows(self) -> list[list[str]]:
        """The cells as text."""
        return [[self._text(value) for value in row] for row in self.rows]

    def _text(self, value: Value) -> str:
        if value is None:
            return MISSING
        return f"{value:,.{self.decimals}f}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawn figure; `name` is the stem of its file."""

    name: str
    svg: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPart:
    """One question of the paper: its tables and charts, and the findings in a few sentences."""

    title: str
    text: Sequence[str] = ()
    tables: Sequence[StudyTable] = ()
    charts: Sequence[Chart] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One paper's experiments: `facts` are what was run on what, `data` is for scripts."""

    name: str
    title: str
    facts: Sequence[tuple[str, str]]
    parts: Sequence[StudyPart]
    data: Mapping[str, object] = field(default_factory=dict)

    @property
    def tables(self) -> list[StudyTable]:
        """The tables of all parts."""
        return [table for part in self.parts for table in part.tables]


def terminal_study(study: Study) -> RenderableType:
    """The tables that are not details, with the findings, for a terminal."""
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
    """A table for a terminal; columns beyond its width continue in another below, under the same first columns."""

    table: StudyTable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = self.table.text_rows()
        for columns in self._parts(rows, options.max_width - EDGES):
            shown = Table(box=SIMPLE_HEAD, header_style="")
            for number in columns:
                justify: Literal["left", "right"] = "left" if number < self.table.keys else "right"
                shown.add_column(Text(self.table.headings[number]), justify=justify, vertical="bottom")
            for row in rows:
                shown.add_row(*(Text(row[number]) for number in columns))
            yield shown

    def _parts(self, rows: Sequence[Sequence[str]], room: int) -> list[list[int]]:
        """Column numbers of each table, with the first columns in all."""
        widths = [
            GAP + max(map(len, [*heading.split(), *(row[number] for row in rows)]))
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
    """Headings and values of one table; empty cells for missing values, and the way of measuring in the last column."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*table.headings, "measured on"])
    for row in table.rows:
        writer.writerow([*("" if value is None else value for value in row), table.measured_on])
    return out.getvalue()


def render_study(study: Study) -> str:
    """The page. Strings are escaped, and it forbids scripts and outside resources. Equal studies give equal bytes."""
    return page_template("study.html.j2").render(study=study)


def write_study(study: Study, folder: Path) -> Path:
    """Write tables (CSV, and all in one Markdown file), charts (SVG), the data (JSON) and the page; return the page.

    Raises ConfigError if the folder cannot be written.
    """
    page = folder / f"{study.name}.html"
    files = {
        page.name: render_study(study),
        f"{study.name}.md": markdown(study),
        f"{study.name}.json": json_text(study.data),
        **{f"{table.name}.csv": csv_text(table) for table in study.tables},
        **{f"{chart.name}.svg": chart.svg for part in study.parts for chart in part.charts},
    }
    try:
        for name, content in files.items():
            write_whole(folder / name, content.encode())
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from error
    return page


def json_text(data: Mapping[str, object]) -> str:
    """The data for scripts, indented."""
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n"
