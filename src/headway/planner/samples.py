"""Parts of a trace that configurations are measured on: the same for all, so that they can be compared one by one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headway.planner.sampler import van_der_corput
from headway.traces import TraceRequest

WARM_UP_SHARE = 0.1
"""Of a window, at its beginning: served, but not counted, since every engine starts empty."""

LONGEST_S, SHORTEST_S = 600.0, 45.0
ENOUGH_REQUESTS = 2_000
"""A window in the last round lasts ten minutes, or as long as so many requests take to come, but never less than 45 s:
answers take seconds, and tens of them where requests are few."""

UNSEEN_TIMES = 2
"""Samples that choose nothing, for each of the last round: only two configurations are compared on them, so more cost
little, and since windows of one trace may be busy or idle, as many as the search had may not prove a gain."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One part of a trace, and the noise of one clock.

    `number` seeds the clock, and what is drawn of a generated workload. `start_share` (0 to 1) says with which of its
    requests the window of `window_s` begins.
    """

    number: int
    start_share: float
    window_s: float


def sample(number: int, window_s: float, *, drawn: bool) -> Sample:
    """The sample of that number: of a file another window, of a generated workload the middle of another draw.

    Not its beginning, where bursts have just begun and conversations are at their first turns.
    """
    return Sample(number, 0.5 if drawn else van_der_corput(number + 1, 2), window_s)


def samples_in_all(searched: int) -> int:
    """How many samples a plan draws whose last round has so many: those that choose nothing included."""
    return (1 + UNSEEN_TIMES) * searched


def final_window_s(requests: Sequence[TraceRequest]) -> float:
    """How long the windows of the last round are."""
    duration_s = requests[-1].arrival_s - requests[0].arrival_s
    enough_s = duration_s * ENOUGH_REQUESTS / len(requests)
    return min(LONGEST_S, max(SHORTEST_S, enough_s), duration_s) or SHORTEST_S


def cut(requests: Sequence[TraceRequest], part: Sample) -> list[TraceRequest]:
    """The requests of a sample, in order of arrival, the window's beginning at 0; at least one.

    The window begins with the request at its share, or so much earlier that it ends with the trace.
    """
    first_s = requests[int(part.start_share * len(requests))].arrival_s
    start_s = max(requests[0].arrival_s, min(first_s, requests[-1].arrival_s - part.window_s))
    begin = bisect_left(requests, start_s, key=_arrival_s)
    # Whoever comes at its very end is in: a window as long as the trace holds all of it.
    end = max(begin + 1, bisect_right(requests, start_s + part.window_s, key=_arrival_s))
    return [replace(each, arrival_s=each.arrival_s - start_s) for each in requests[begin:end]]


def _arrival_s(request: TraceRequest) -> float:
    return request.arrival_s


def counted_from_s(requests: Sequence[TraceRequest], part: Sample) -> float:
    """From when on arrivals count; 0 if nobody came later."""
    warm_s = WARM_UP_SHARE * part.window_s
    return warm_s if requests[-1].arrival_s >= warm_s else 0.0
