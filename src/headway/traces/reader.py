"""Traces in: a file of any accepted format as a list of requests."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from os import PathLike
from pathlib import Path

from headway.errors import ConfigError, TraceError
from headway.traces.cells import shown
from headway.traces.formats import Fields, Format
from headway.traces.lines import text_lines
from headway.traces.request import TraceRequest
from headway.traces.rows import recognise

logger = logging.getLogger(__name__)


def read_trace(
    path: str | PathLike[str], *, limit: int | None = None, drop_empty: bool = False
) -> list[TraceRequest]:
    """The requests of a trace file in order of arrival, the first at 0 s.

    The format is told from the content: Headway CSV, Mooncake JSON lines, Azure LLM CSV and BurstGPT CSV
    as published, each plain or gzip. `limit` stops after that many requests, and nothing behind them is
    looked at. Requests without output are left out, with one warning for a file that counts them, from BurstGPT
    always (they are its failures) and elsewhere only if `drop_empty`. Where a Headway CSV has no `id` column,
    a request's id is its place in the result.

    Raises TraceError naming the file, the line (the header is line 1), what was found and what is accepted.
    """
    source = Path(path)
    if limit is not None and limit < 1:
        raise TraceError(f"limit is {limit}; accepted: 1 or more")
    with closing(text_lines(source)) as lines:
        form, rows = recognise(source, lines)
        taken = _Intake(form, drop_empty or form.drops_empty)
        for number, row in rows:
            try:
                taken.add(number, *form.parse(row))
            except (TraceError, ConfigError) as error:
                raise TraceError(f"{source}, line {number}: {error}") from None
            if len(taken.requests) == limit:
                break
    if taken.dropped:
        _tell_left_out(source, taken.dropped)
    if not taken.requests:
        raise TraceError(f"{source} has no requests with output; accepted: one or more")
    return taken.requests


@cache
def _tell_left_out(source: Path, count: int) -> None:
    """Once for a file: a study reads its trace for every run."""
    logger.warning("%s: left out %d requests with 0 output tokens", source, count)


@dataclass(slots=True)
class _Last:
    """The line taken before this one."""

    line: int
    ticks: float
    session: str | None


@dataclass(slots=True)
class _Intake:
    """Requests taken so far; keeps arrivals in order, counted from the first, and ids distinct."""

    form: Format
    drop_empty: bool
    requests: list[TraceRequest] = field(default_factory=list)
    dropped: int = 0
    first_ticks: float = 0
    last: _Last | None = None
    ids: set[str] = field(default_factory=set)

    def add(self, line: int, ticks: float, fields: Fields) -> None:
        if fields["output_tokens"] == 0:
            if self.drop_empty:
                self.dropped += 1
                return
            column = self.form.columns[-1]
            raise TraceError(f"{column} is 0; accepted: 1 or more")
        session = fields.get("session")
        if self.last is None:
            self.first_ticks = ticks
        else:
            self._check_order(self.last, ticks, session)
        self.last = _Last(line, ticks, session)
        name = fields.setdefault("id", str(len(self.requests)))
        if name in self.ids:
            raise TraceError(f"id {shown(name)} occurs twice; accepted: distinct ids")
        self.ids.add(name)
        arrival_s = (ticks - self.first_ticks) / self.form.ticks_per_s
        self.requests.append(TraceRequest(arrival_s=arrival_s, **fields))

    def _check_order(self, last: _Last, ticks: float, session: str | None) -> None:
        if ticks >= last.ticks:
            return
        if ticks == 0 and session != last.session:
            raise TraceError(
                f"time starts again at 0 with session {shown(session or '')}; sessions have their own clocks here: "
                "superpose them on one clock first"
            )
        early_s = (last.ticks - ticks) / self.form.ticks_per_s
        raise TraceError(
            f"arrives {early_s:g} s before line {last.line}; sort the trace by {self.form.columns[0]}"
        )
