"""The series behind the charts: distributions, queue lengths and phases, thinned to what can be seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from headway.core.record import Outcome, Record
from headway.results.metrics import end_s, ends, measured

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_POINTS = 300
"""Points a curve is thinned to; more would not be seen, and would make the page heavy."""

PHASES = ("waiting", "scheduled, no token yet", "decoding")
"""Phases of a request, in order."""

SMALLEST_S = 1e-6
"""What no time counts as where an axis is logarithmic, which has no zero; times are stored to the microsecond."""


def queue_lengths(records: Sequence[Record]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Times in seconds since the first arrival, rising, and the queue length from each on: two (n_changes,).

    The queue holds what has arrived and is not yet scheduled. Without a first scheduled time a request counts
    until its first token. Cost: O(n log n).
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

    An unfinished request has no value, yet counts as one of the requests; a finished one without it does not.
    """
    values_s = np.sort(np.maximum(measured(map(value_s, ended)), SMALLEST_S))
    lost = sum(record.outcome is not Outcome.FINISHED for record in ended)
    ranks = spread(len(values_s), MAX_POINTS)
    return values_s[ranks], (np.array(ranks, dtype=float) + 1) / max(1, len(values_s) + lost)


def spread(count: int, at_most: int) -> list[int]:
    """`at_most` indexes spread evenly over `count`, the first and the last included."""
    if count <= at_most:
        return list(range(count))
    return [round(index) for index in np.linspace(0, count - 1, at_most)]


def thin_by_peaks(
    times_s: NDArray[np.float64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The highest length of each of MAX_POINTS stretches, at its start, and the end; short runs as they are."""
    if len(times_s) <= MAX_POINTS:
        return times_s, lengths
    starts = np.linspace(0, len(times_s), MAX_POINTS, endpoint=False).astype(int)
    peaks = np.maximum.reduceat(lengths, starts)
    return np.append(times_s[starts], times_s[-1]), np.append(peaks, lengths[-1])
