"""Reads a file of any accepted format as a list of requests, and reports how it was understood."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from os import PathLike
from pathlib import Path

from headway.errors import ConfigError, HeadwayError, TraceError
from headway.traces.cells import DATES_S, TICKS_PER_S, Cells, shown
from headway.traces.formats import Format, WholeFileError
from headway.traces.request import TraceRequest
from headway.traces.rows import opened

PLAUSIBLE_GAP_S = 0.01, 300.0
"""Plausible mean gaps between arrivals if the unit of time is only assumed; outside, the unit is another."""
SHORT_TRACE_S = 60.0
"""A trace whose unit is only assumed must last longer than this, if its gaps are plausible in seconds."""
MOST_REASONS = 8
"""Most reasons for dropped rows in a warning."""

logger = logging.getLogger(__name__)


def read_trace(
    path: str | PathLike[str],
    *,
    limit: int | None = None,
    time_unit: str | None = None,
    strict: bool = False,
) -> list[TraceRequest]:
    """Read the requests of a trace file in order of arrival, the first at 0 s.

    The format is recognised by content: CSV, JSON lines, JSON or Parquet with the keys of Headway, Azure, BurstGPT or
    Mooncake, and what guidellm, aiperf, vLLM, OpenTelemetry and access logs write; text may be compressed. `limit`
    stops after that many requests, and nothing after them is examined. A row that is no request, such as one without
    output, is dropped, and one warning for each file counts such rows by reason. Rows out of order are sorted, with a
    warning. `strict` refuses both. If a trace has no `id`, a request's id is its position in the result.

    `time_unit` ("s", "ms", "us", "ns") is the unit of arrivals if the file does not state it; None is the format's
    usual one. That is refused if arrivals would be closer together or further apart than `PLAUSIBLE_GAP_S`, have a
    decimal point, would all come within a moment, or begin at a date in another unit. How the file was understood is
    logged at level INFO.

    Raises TraceError naming the file, the place in it, what was found and what is accepted.
    """
    read = read_with_texts(path, limit=limit, time_unit=time_unit, strict=strict)
    if any(text for _, text in read):
        logger.info("%s: its prompts are passed over; `headway record` keeps which prefixes they share", path)
    return [request for request, _ in read]


def read_with_texts(
    path: str | PathLike[str],
    *,
    limit: int | None = None,
    time_unit: str | None = None,
    strict: bool = False,
) -> list[tuple[TraceRequest, str]]:
    """Each request as in `read_trace`, with its prompt if a log has it (text, JSON or token ids), else ''."""
    source = Path(path)
    if limit is not None and limit < 1:
        raise TraceError.of("limit", limit, "1 or more")
    if time_unit is not None and time_unit not in TICKS_PER_S:
        raise TraceError.of("time_unit", repr(time_unit), f"{', '.join(TICKS_PER_S)}")
    with opened(source) as (form, rows):
        taken = _Intake(source, form, strict)
        for place, cells in rows:
            taken.add(place, cells)
            if len(taken.rows) == limit:
                break
    if not taken.rows:
        raise TraceError(
            f"{source} has no requests with input and output{taken.reasons(': ')}; accepted: one or more"
        )
    is_sorted = taken.sort()
    if strict and form.in_order and not is_sorted:
        raise TraceError(
            f"{source}: rows are not in order of {form.columns[0]}; accepted: sorted rows, or no --strict"
        )
    unit = _time_unit(source, taken, time_unit)
    requests = taken.requests(TICKS_PER_S[unit])
    if taken.faults:
        _warn("%s: left out %s", source, f"{taken.left_out()}{taken.reasons(': ')}")
    if not is_sorted:
        _warn("%s: rows were not in order of arrival; sorted by %s", source, form.columns[0])
    note = f"; {form.note}" if form.note else ""
    understood = f"{form.name}, {form.columns[0]}: {form.told_unit or unit}{note}"
    tell_understood(str(source), [request for request, _ in requests], understood)
    return requests


def tell_understood(source: str, requests: list[TraceRequest], form: str) -> None:
    """Log at level INFO the number of requests, their time span, rate and lengths, and the format."""
    span_s = requests[-1].arrival_s
    count = f"{len(requests):,} request{'s' if len(requests) > 1 else ''}"
    rate = f"over {_span(span_s)}, {len(requests) / span_s:.3g} a second" if span_s else "all at once"
    asked, answered = (
        sum(lengths) / len(requests)
        for lengths in zip(*((each.input_tokens, each.output_tokens) for each in requests), strict=True)
    )
    logger.info(
        "%s: %s",
        source,
        f"{count} {rate}, mean input {asked:,.0f} and output {answered:,.0f} tokens ({form})",
    )


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:,.6g} s"
    if seconds < 7200:
        return f"{seconds // 60:.0f} min {seconds % 60:02.0f} s"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:,.1f} days"


@cache
def _warn(message: str, source: Path, found: object) -> None:
    """Warn once for each file, since a study reads its trace for every run."""
    logger.warning(message, source, found)


def _time_unit(source: Path, taken: _Intake, asked: str | None) -> str:
    """The unit of a file's arrivals: stated by the file, requested, or the format's usual one.

    Raises TraceError for a unit other than the stated one, and for a usual one that contradicts the arrivals.
    """
    form = taken.form
    if form.told_unit and asked not in (None, form.told_unit):
        raise TraceError.of(
            "time_unit",
            f"{asked!r} for {source}, whose {form.columns[0]} tells its unit ({form.told_unit})",
            "a trace that does not tell it",
        )
    unit = asked or form.time_unit
    if not unit:
        raise TraceError(
            f"{source}: {form.columns[0]} does not tell its unit; accepted: dates, or the unit told by --time-unit "
            f"{'|'.join(TICKS_PER_S)}"
        )
    doubt = "" if asked else _doubt(taken, unit)
    if doubt:
        told = "" if form.told_unit else f", or the unit told by --time-unit {'|'.join(TICKS_PER_S)}"
        raise TraceError(f"{source}: {form.columns[0]} is taken for {unit}, and {doubt}{told}")
    return unit


def _doubt(taken: _Intake, unit: str) -> str:
    """What contradicts arrivals in this unit, empty if nothing does. For sorted rows.

    A date in another unit does; and, if the file does not state its unit, an implausible gap, a decimal point in what
    should be an integer, and a trace that is over in a moment although its times would do as seconds.
    """
    first = taken.rows[0].ticks
    for other, per_s in TICKS_PER_S.items():
        if other != unit and DATES_S[0] <= first / per_s < DATES_S[1]:
            return f"the first, {first}, is a date in {other} since 1970; accepted: {unit}"
    if taken.form.told_unit:
        return ""
    per_s = TICKS_PER_S[unit]
    gap = taken.mean_gap()
    least_s, most_s = PLAUSIBLE_GAP_S
    if gap and not least_s <= gap / per_s <= most_s:
        return (
            f"arrivals would be {gap / per_s:.3g} s apart on average; accepted: {least_s:g} to {most_s:g} s"
        )
    if unit == "s":
        return ""
    part = next((row.ticks for row in taken.rows if isinstance(row.ticks, float)), None)
    if part is not None:
        return f"{part} is no whole number of them; accepted: whole {unit}"
    span = taken.rows[-1].ticks - first
    if gap and gap <= SHORT_TRACE_S and span / per_s < SHORT_TRACE_S:
        return f"all would come within {span / per_s:.3g} s (in seconds: {span:,.6g} s); accepted: a longer trace"
    return ""


@dataclass(slots=True)
class _Row:
    """A request without its time, and its arrival in ticks."""

    ticks: float
    place: str
    request: TraceRequest
    text: str
    is_named: bool


@dataclass(slots=True)
class _Intake:
    """Rows taken so far, and the number dropped for each reason, with the first of them."""

    source: Path
    form: Format
    strict: bool
    rows: list[_Row] = field(default_factory=list)
    faults: dict[str, tuple[int, str]] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)

    def add(self, place: str, cells: Cells | TraceError) -> None:
        """Take a row, or count it as dropped. Raises TraceError for a fault of the file, and of a row if strict."""
        try:
            if isinstance(cells, TraceError):
                raise cells
            row = self._row(place, cells)
        except (TraceError, ConfigError) as error:
            if self.strict or isinstance(error, WholeFileError):
                raise TraceError(f"{self.source}, {place}: {error}") from None
            reason = _reason(error)
            count, first = self.faults.get(reason, (0, place))
            self.faults[reason] = count + 1, first
            return
        if self.rows and row.ticks == 0:
            self._check_clock(place, row.request.session)
        if row.is_named:
            self.ids.add(row.request.id)
        self.rows.append(row)

    def _row(self, place: str, cells: Cells) -> _Row:
        ticks, input_tokens, output_tokens, more = self.form.parse(cells)
        name = place if more.id is None else more.id
        if more.id in self.ids:
            raise TraceError(f"id {shown(name)} occurs twice; accepted: distinct ids")
        request = TraceRequest(
            name,
            0.0,
            input_tokens,
            output_tokens,
            more.max_output_tokens,
            more.tenant,
            more.prompt,
            more.session,
            more.prefix_blocks,
            more.priority,
            more.slo,
            more.think_s,
        )
        return _Row(ticks, place, request, more.text, is_named=more.id is not None)

    def _check_clock(self, place: str, session: str | None) -> None:
        last = self.rows[-1]
        if last.ticks > 0 and session != last.request.session:
            raise TraceError(
                f"{self.source}, {place}: time starts again at 0 with session {shown(session or '')}; sessions have "
                "their own clocks here: superpose them on one clock first"
            )

    def sort(self) -> bool:
        """Sort the rows by arrival; return whether they were sorted."""
        were = all(earlier.ticks <= later.ticks for earlier, later in pairwise(self.rows))
        self.rows.sort(key=lambda row: row.ticks)
        return were

    def mean_gap(self) -> float:
        """Mean ticks between arrival times; 0 if all arrive at once. For sorted rows."""
        times = {row.ticks for row in self.rows}
        return (self.rows[-1].ticks - self.rows[0].ticks) / max(1, len(times) - 1)

    def requests(self, ticks_per_s: int) -> list[tuple[TraceRequest, str]]:
        """The sorted rows as requests, with their texts. Raises TraceError for an arrival later than allowed."""
        requests = []
        for number, row in enumerate(self.rows):
            arrival_s = (row.ticks - self.rows[0].ticks) / ticks_per_s
            name = row.request.id if row.is_named else str(number)
            try:
                requests.append((replace(row.request, arrival_s=arrival_s, id=name), row.text))
            except TraceError as error:
                raise TraceError(f"{self.source}, {row.place}: {error}") from None
        return requests

    def left_out(self) -> str:
        """How many rows of how many were dropped."""
        count = sum(number for number, _ in self.faults.values())
        return f"{count:,} of {count + len(self.rows):,} rows"

    def reasons(self, before: str = "") -> str:
        """Why rows were dropped, most frequent first, with the number and the first place of each; '' if none was."""
        ordered = sorted(self.faults.items(), key=lambda fault: -fault[1][0])
        told = [f"{reason} ({count:,}, first {place})" for reason, (count, place) in ordered[:MOST_REASONS]]
        more = [f"{len(ordered) - MOST_REASONS} other reasons"] if len(ordered) > MOST_REASONS else []
        return before + ", ".join(told + more) if told else ""


def _reason(error: HeadwayError) -> str:
    """The part that a fault shares with others of its kind: everything except the value found."""
    what, is_value, rest = str(error).partition(" is ")
    accepted = rest.rpartition("; accepted: ")[2]
    return (
        f"{what} is not {accepted}"
        if is_value and accepted != rest
        else str(error).partition("; accepted")[0]
    )
