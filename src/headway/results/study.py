"""A paper's experiments repeated: what was run, and tables and charts with the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headway.results.tables import MISSING

Value = str | int | float | None
"""What a cell holds; None is shown as a dash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTable:
    """Rows under headings; `measured_on` says whether they were simulated or measured, and on what.

    `note` says in a sentence or two how to read them. Fractions are shown with `decimals` digits, and written to
    CSV whole. `name` is the stem of its file. The first `keys` columns say what a row is about. A `detail` is
    folded away on the page.
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
        """The cells as they are shown."""
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
    """One question of the paper: its tables and charts, and what came out in a few sentences."""

    title: str
    text: Sequence[str] = ()
    tables: Sequence[StudyTable] = ()
    charts: Sequence[Chart] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One paper's experiments: `facts` are what was run on what, `data` is what scripts read."""

    name: str
    title: str
    facts: Sequence[tuple[str, str]]
    parts: Sequence[StudyPart]
    data: Mapping[str, object] = field(default_factory=dict)

    @property
    def tables(self) -> list[StudyTable]:
        """The tables of all parts."""
        return [table for part in self.parts for table in part.tables]
