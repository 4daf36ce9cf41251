"""Comparison tables, with the same cells for the terminal and for the page; and the numbers as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from headway.results.comparison import Comparison
from headway.results.metrics import COLUMNS, Better, Group, Summary
from headway.statistics import known

MISSING = "–"
ARROWS = {Better.LOWER: "↓", Better.HIGHER: "↑", Better.NEITHER: ""}

_DIGITS = 3
GAP = 3  # spaces between two columns in the terminal
EDGES = 4  # spaces left and right of a table in the terminal
_FIRST = ("goodput", "goodput_rps")  # the purpose of the system comes first


@dataclass(frozen=True, slots=True)
class Heading:
    """Head of one column; `unit` is the unit of the cells below, ms if all of them are under a second."""

    key: str
    text: str
    unit: str
    better: Better
    meaning: str

    @property
    def arrow(self) -> str:
        """The better direction: an arrow, or "" if there is none."""
        return ARROWS[self.better]


@dataclass(frozen=True, slots=True)
class SheetCell:
    """One value as text; `best` if no other policy has a better one and some have a worse one."""

    text: str
    best: bool


@dataclass(frozen=True, slots=True)
class Sheet:
    """One table of a comparison: a row for each policy, a cell for each heading. `note` stands under the title."""

    title: str
    note: str
    headings: list[Heading]
    rows: list[tuple[str, list[SheetCell]]]


def sheets(comparison: Comparison) -> list[Sheet]:
    """The tables of a comparison, one for each Group; then latencies over the common subset if requests differ.

    If policies are not comparable no latency is marked best, except over the common subset.
    """
    tables = []
    for group in Group:
        if group is Group.PROGRAMS and all(each.programs is None for each in comparison.summaries.values()):
            continue
        doubtful = group is Group.LATENCY and not comparison.comparable
        note = comparison.note if doubtful else ""
        tables.append(_sheet(group, str(group), note, comparison.summaries, mark_best=not doubtful))
        if doubtful and comparison.common:
            num_common = next(iter(comparison.common.values())).finished
            title = f"Latency of requests finished under all policies ({num_common:,})"
            tables.append(_sheet(group, title, "", comparison.common, mark_best=True))
    return tables


def _sheet(
    group: Group, title: str, note: str, summaries: Mapping[str, Summary], *, mark_best: bool
) -> Sheet:
    keys = sorted((key for key in COLUMNS if COLUMNS[key].group is group), key=lambda key: key not in _FIRST)
    headings: list[Heading] = []
    columns: list[list[SheetCell]] = []
    for key in keys:
        column = COLUMNS[key]
        values = [getattr(summary, key) for summary in summaries.values()]
        in_ms = column.unit == "s" and 0 < max(known(values), default=0) < 1
        unit = "ms" if in_ms else column.unit
        headings.append(Heading(key, column.heading, unit, column.better, column.meaning))
        columns.append(_cells(values, 1000 if in_ms else 1, column.better if mark_best else Better.NEITHER))
    rows = [(policy, [cells[row] for cells in columns]) for row, policy in enumerate(summaries)]
    return Sheet(title, note, headings, rows)


def _cells(values: Sequence[float | None], scale: int, better: Better) -> list[SheetCell]:
    """The cells of a column, with equal numbers of decimals; values that look the same are equally good."""
    places = decimals([value * scale for value in known(values)])
    texts = [MISSING if value is None else f"{value * scale:,.{places}f}" for value in values]
    shown = {value: text for value, text in zip(values, texts, strict=True) if value is not None}
    if better is Better.NEITHER or len(set(shown.values())) < 2:
        return [SheetCell(text, best=False) for text in texts]
    best = shown[min(shown) if better is Better.LOWER else max(shown)]
    return [SheetCell(text, best=text == best) for text in texts]


def decimals(values: Sequence[float]) -> int:
    """Decimals, three at most, that show three digits of the smallest value and keep the largest to four.

    If the two are far apart, digits of the largest are dropped for one digit of the smallest.
    """
    sizes = [floor(log10(abs(value))) for value in values if value]
    if not sizes or all(isinstance(value, int) for value in values):
        return 0
    wanted = min(_DIGITS - 1 - min(sizes), _DIGITS - max(0, max(sizes)))
    return min(_DIGITS, max(0, wanted, -min(sizes)))


def terminal_table(comparison: Comparison) -> RenderableType:
    """The comparison for a terminal: a rich table for each sheet, the best value of a column in bold green.

    A sheet too wide for the terminal continues in another table below it; nothing is cut off.
    """
    return _TerminalTables(sheets(comparison))


@dataclass(frozen=True, slots=True)
class _TerminalTables:
    found: list[Sheet]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for sheet in self.found:
            yield Text(f"\n{sheet.title}", style="bold")
            if sheet.note:
                yield Text(sheet.note, style="yellow")
            name_width = _name_width(sheet, options.max_width)
            widths = [GAP + _width(sheet, number) for number in range(len(sheet.headings))]
            for columns in wrap_columns(widths, options.max_width - name_width - EDGES):
                yield _table(sheet, columns, name_width)


def wrap_columns(widths: Sequence[int], room: int) -> list[list[int]]:
    """Column numbers of the tables into which a wide one is split, so that every one fits if possible.

    Widths, including the gap, and the room for a table's columns are in characters.

    >>> wrap_columns([8, 8, 30, 3], 20)
    [[0, 1], [2], [3]]
    """
    parts: list[list[int]] = [[]]
    left = room
    for number, width in enumerate(widths):
        if parts[-1] and width > left:
            parts.append([])
            left = room
        parts[-1].append(number)
        left -= width
    return parts


def _width(sheet: Sheet, number: int) -> int:
    """Characters that a column needs: those of its longest word."""
    texts = [*_head(sheet.headings[number]).split(), *(cells[number].text for _, cells in sheet.rows)]
    return max(map(len, texts))


def _name_width(sheet: Sheet, max_width: int) -> int:
    """Characters for the policy names; longer ones are folded."""
    return max(len("policy"), min(max_width // 2, max(len(policy) for policy, _ in sheet.rows)))


def _table(sheet: Sheet, columns: Sequence[int], name_width: int) -> Table:
    table = Table(box=SIMPLE_HEAD, header_style="")
    table.add_column("policy", vertical="bottom", overflow="fold", width=name_width)
    for number in columns:
        head, width = Text(_head(sheet.headings[number])), _width(sheet, number)
        table.add_column(head, justify="right", vertical="bottom", width=width)
    for policy, cells in sheet.rows:
        shown = (cells[number] for number in columns)
        table.add_row(
            Text(policy), *(Text(cell.text, style="bold green" if cell.best else "") for cell in shown)
        )
    return table


def _head(heading: Heading) -> str:
    """The heading, then unit and arrow on a line of their own."""
    return f"{heading.text}\n{' '.join(filter(None, (heading.unit, heading.arrow)))}"


def to_json(summaries: Mapping[str, Summary]) -> str:
    """One JSON object, `{"<policy>": {summary}}`, keys in the order of Summary, null for not measurable."""
    plain = {policy: summary.to_dict() for policy, summary in summaries.items()}
    return msgspec.json.format(msgspec.json.encode(plain), indent=2).decode()
