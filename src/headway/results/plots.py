"""Charts of a run as SVG: latencies, timelines, the queue, and metrics against load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from math import log10
from typing import TYPE_CHECKING, Any

import numpy as np

from headway.core.record import Outcome, Record
from headway.results.metrics import COLUMNS, end_s, ends, jct_s, tbt_s, ttft_s
from headway.results.svg import INK, draw, line_style
from headway.statistics import known

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

MAX_POINTS = 300
"""Most points of a curve; more would not be visible, and would make the page heavy."""

PHASES = ("waiting", "scheduled, no token yet", "decoding")
"""Phases of a request, in order."""

SMALLEST_S = 1e-6
"""Value that replaces 0 on a logarithmic axis; times are stored to the microsecond."""


def queue_lengths(records: Sequence[Record]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Change times in seconds since the first arrival, and the queue length after each: two (n_changes,).

    The queue holds arrived requests that are not scheduled yet. Without a first scheduled time a request counts until
    its first token. Cost: O(n log n).
    """
    ended = ends(records)
    arrivals_s = np.array([record.arrival_s for record in ended])
    starts_s = np.array([_start_s(record) for record in ended])
    times_s, which = np.unique(np.concatenate([arrivals_s, starts_s]), return_inverse=True)
    change = np.zeros(len(times_s), dtype=np.int64)
    np.add.at(change, which, np.repeat([1, -1], len(ended)))
    return times_s - (times_s[0] if len(times_s) else 0.0), np.cumsum(change)


def _start_s(record: Record) -> float:
    started_s = record.first_token_s if record.first_scheduled_s is None else record.first_scheduled_s
    return end_s(record) if started_s is None else started_s


def phase_spans(record: Record, origin_s: float) -> list[tuple[float, float]]:
    """(start, length) of each of PHASES, in seconds from `origin_s`; a phase not reached has length 0."""
    last_s = end_s(record)
    started_s = _start_s(record)
    token_s = last_s if record.first_token_s is None else record.first_token_s
    edges_s = (record.arrival_s, started_s, token_s, last_s)
    return [(start_s - origin_s, until_s - start_s) for start_s, until_s in pairwise(edges_s)]


def distribution(
    ended: Sequence[Record], value_s: Callable[[Record], float | None]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sorted values and the share of requests at or below each, both (<= MAX_POINTS,).

    An unfinished request has no value, but counts among the requests; a finished one without the value does not.
    """
    values_s = np.sort(np.maximum(known(map(value_s, ended)), SMALLEST_S))
    lost = sum(record.outcome is not Outcome.FINISHED for record in ended)
    ranks = spread(len(values_s), MAX_POINTS)
    return values_s[ranks], (np.array(ranks, dtype=float) + 1) / max(1, len(values_s) + lost)


def spread(count: int, at_most: int) -> list[int]:
    """`at_most` indexes spread evenly over `count`, including the first and the last."""
    if count <= at_most:
        return list(range(count))
    return [round(index) for index in np.linspace(0, count - 1, at_most)]


def thin_by_peaks(
    times_s: NDArray[np.float64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The highest length in each of MAX_POINTS stretches, and the end; short runs are unchanged."""
    if len(times_s) <= MAX_POINTS:
        return times_s, lengths
    starts = np.linspace(0, len(times_s), MAX_POINTS, endpoint=False).astype(int)
    peaks = np.maximum.reduceat(lengths, starts)
    return np.append(times_s[starts], times_s[-1]), np.append(peaks, lengths[-1])


MAX_BARS = 60
"""Most requests in a timeline."""

_SMALL_IN, _WIDE_IN = (4.6, 3.1), (13.2, 2.9)
_PHASE_COLOURS = ("#98A2AE", "#E69F00", "#0072B2")
_LOST = "#D55E00"
_LEAST_RATIO = 5.0  # between the ends of a log axis
_TARGET_STYLE: dict[str, Any] = {"color": INK, "linewidth": 1.1, "linestyle": ":"}


@dataclass(frozen=True, slots=True)
class _Latency:
    name: str
    value_s: Callable[[Record], float | None]
    target_s: Callable[[Record], float | None]


class Latency(Enum):
    """The latencies with a distribution chart."""

    TTFT = _Latency("Time to first token", ttft_s, lambda record: record.slo.ttft_s)
    TBT = _Latency("Time between tokens", tbt_s, lambda record: record.slo.tbt_s)
    JCT = _Latency("Job completion time", jct_s, lambda record: record.slo.deadline_s)


def cdf_svg(records: Mapping[str, Sequence[Record]], latency: Latency, *, where: str = "") -> str:
    """Share of requests that took no longer than x, by policy, on a log axis.

    The share is of all ended requests, so a policy that refused or lost some stays below 1. A dotted line marks the
    target if all requests with one share it. `where` makes the ids of a page's charts unique.
    """
    kind = latency.value
    curves = [distribution(ends(mine), kind.value_s) for mine in records.values()]
    largest_s = max((float(values_s[-1]) for values_s, _ in curves if len(values_s)), default=None)
    targets_s = set(known(kind.target_s(record) for mine in records.values() for record in mine))
    target_s = targets_s.pop() if len(targets_s) == 1 else None

    def paint(axes: Axes) -> None:
        axes.set_title(kind.name)
        if largest_s is None:
            return _say(axes, "no finished request has this value")
        for index, (values_s, shares) in enumerate(curves):
            if len(values_s):
                style = {**line_style(index), "marker": ""}
                # the plateau extends to the end of the slowest policy
                axes.step([*values_s, largest_s], [*shares, shares[-1]], where="post", **style)
        if target_s is not None:
            axes.axvline(target_s, **_TARGET_STYLE)
        _log_seconds(axes)
        axes.set_ylim(0, 1.02)
        axes.set_ylabel("share of requests")

    return draw(f"{kind.name}{where}", _SMALL_IN, paint, _line_legend(records, target_s))


def timeline_svg(
    policy: str, records: Sequence[Record], *, until_s: float | None = None, where: str = ""
) -> str:
    """Requests as bars from arrival to end, coloured by phase; a cross marks an unfinished end.

    More than MAX_BARS requests are sampled evenly by arrival, and the title says so. Without a first scheduled time the
    wait lasts to the first token. `until_s`, in seconds since the first arrival, ends the axis, so that several
    policies can share it.
    """
    ended = sorted(ends(records), key=lambda record: (record.arrival_s, record.id))
    shown = [ended[index] for index in spread(len(ended), MAX_BARS)]
    of = (
        f"all {len(ended):,}"
        if len(shown) == len(ended)
        else f"{len(shown)} of {len(ended):,}, evenly sampled"
    )

    def paint(axes: Axes) -> None:
        axes.set_title(f"{policy}: requests over time ({of})")
        if not shown:
            return _say(axes, "no request")
        for row, record in enumerate(shown):
            _paint_request(axes, row, record, shown[0].arrival_s)
        axes.set_xlim(0, until_s or None)
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_yticks([])
        axes.set_ylabel("requests by arrival")
        axes.set_xlabel("seconds since the first arrival")

    height_in = 1.3 + 0.05 * max(10, len(shown))
    return draw(f"Requests over time, {policy}{where}", (_WIDE_IN[0], height_in), paint, _phase_legend())


def _paint_request(axes: Axes, row: int, record: Record, origin_s: float) -> None:
    axes.broken_barh(phase_spans(record, origin_s), (row - 0.4, 0.8), facecolors=_PHASE_COLOURS)
    if record.outcome is not Outcome.FINISHED:
        axes.plot(end_s(record) - origin_s, row, "x", color=_LOST, markersize=5)


def _phase_legend() -> list[tuple[Any, str]]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    phases = [(Patch(color=colour), name) for colour, name in zip(_PHASE_COLOURS, PHASES, strict=True)]
    return [*phases, (Line2D([], [], color=_LOST, marker="x", linestyle=""), "ended unfinished")]


def queue_svg(records: Mapping[str, Sequence[Record]], *, where: str = "") -> str:
    """Requests that had arrived and were not scheduled yet, over time, by policy.

    Without a first scheduled time a request counts until its first token. A long run is drawn by the highest value of
    each stretch.
    """
    curves = {policy: queue_lengths(mine) for policy, mine in records.items()}

    def paint(axes: Axes) -> None:
        axes.set_title("Queue length")
        for index, (times_s, lengths) in enumerate(curves.values()):
            style = {**line_style(index), "marker": "", "linewidth": 1.3}
            axes.step(*thin_by_peaks(times_s, lengths), where="post", **style)
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.set_ylabel("requests waiting")
        axes.set_xlabel("seconds since the first arrival")

    return draw(f"Queue length{where}", _WIDE_IN, paint, _line_legend(records))


def sweep_svg(points: Mapping[str, Sequence[tuple[float, float | None]]], key: str, load_name: str) -> str:
    """One summary key against the load or rate scale, a line for each policy; (load, None) is left out.

    Seconds have a log axis, shares run from 0 to 1, anything else from 0.
    """
    column = COLUMNS[key]
    name = f"{column.heading} ({column.unit})" if column.unit not in ("", "s") else column.heading
    least = SMALLEST_S if column.unit == "s" else 0.0

    def paint(axes: Axes) -> None:
        axes.set_title(name)
        for index, line in enumerate(points.values()):
            drawn = [(load, max(value, least)) for load, value in line if value is not None]
            axes.plot([x for x, _ in drawn], [y for _, y in drawn], markersize=4, **line_style(index))
        axes.set_xlabel(load_name)
        if not any(value is not None for line in points.values() for _, value in line):
            return _say(axes, "not measured")
        if column.unit == "s":
            return _log_seconds(axes, "y")
        axes.set_ylim(0, 1.02 if key == "goodput" else None)

    return draw(f"{name} against {load_name}", _SMALL_IN, paint, _line_legend(points))


def _line_legend(
    policies: Mapping[str, Sequence[Any]], target_s: float | None = None
) -> list[tuple[Any, str]]:
    """Legend lines for every policy with data, and for the target."""
    from matplotlib.lines import Line2D

    styles = [{**line_style(index), "marker": ""} for index in range(len(policies))]
    shown = zip(styles, policies.items(), strict=True)
    legend = [(Line2D([], [], **style), policy) for style, (policy, values) in shown if values]
    if target_s is None:
        return legend
    return [*legend, (Line2D([], [], **_TARGET_STYLE), f"target {seconds_text(target_s)}")]


def _say(axes: Axes, what: str) -> None:
    """Show a sentence in place of an empty chart."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, what, ha="center", va="center", transform=axes.transAxes)


def _log_seconds(axes: Axes, which: str = "x") -> None:
    """Make an axis of seconds logarithmic, with labels in µs, ms or s; small differences are not exaggerated."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    low, high = axis.get_view_interval()
    middle, half_width = (low * high) ** 0.5, max((high / low) ** 0.5, _LEAST_RATIO**0.5)
    (axes.set_xlim if which == "x" else axes.set_ylim)(middle / half_width, middle * half_width)
    decades = 2 * log10(half_width)
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades <= 2 else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: seconds_text(value)))
    axis.set_minor_formatter(NullFormatter())


def seconds_text(value_s: float) -> str:
    """Seconds in the unit that a reader would choose: "50 ms", "1.5 s"."""
    if value_s >= 1:
        return f"{value_s:g} s"
    return f"{value_s * 1e3:g} ms" if value_s >= 1e-3 else f"{value_s * 1e6:g} µs"
