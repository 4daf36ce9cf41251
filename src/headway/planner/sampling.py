"""Draws the configurations to try, and the parts of a trace to try them on."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from headway.planner.machine import Configuration
from headway.planner.space import Index, PolicySettings, Space
from headway.traces import TraceRequest

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)
"""Bases of the axes of a grid."""

SEED_STRIDE = 1_009
"""Distance in the sequence between two seeds."""

MOST_DRAWS = 50
"""Points drawn for each wanted configuration; whatever is missing then is taken in order."""

SHARE_OF_ALL_GPUS = 0.5
"""Share of the tried configurations that use all of the GPUs; smaller numbers share the rest."""


def van_der_corput(number: int, base: int) -> float:
    """The digits of `number` in a base, mirrored at the point.

    Of any n consecutive numbers, about n x w lie in an interval of width w.

    >>> [van_der_corput(number, 2) for number in (1, 2, 3, 4)]
    [0.5, 0.25, 0.75, 0.125]

    Source: van der Corput 1935; several bases together, Halton 1960.
    """
    value, scale = 0.0, 1.0
    while number:
        number, digit = divmod(number, base)
        scale /= base
        value += digit * scale
    return value


def point(number: int, shape: Sequence[int]) -> Index:
    """A setting on each axis of a grid, by the Halton sequence."""
    bases = PRIMES[: len(shape)]
    return tuple(
        int(van_der_corput(number, base) * length) for base, length in zip(bases, shape, strict=True)
    )


def spread(grid: PolicySettings, wanted: int, seed: int = 0) -> list[Configuration]:
    """`wanted` of a grid's possible configurations, or all if there are fewer; the plain one comes first.

    Every prefix of the list is spread over every axis. Another seed gives others, except for the plain one. O(wanted)
    if much of the grid is possible.
    """
    size = min(wanted, len(grid.possible))
    chosen: dict[Configuration, None] = {}
    if grid.plain is not None and size:
        chosen[grid.plain] = None
    start = 1 + seed * SEED_STRIDE
    for number in count(start):
        if len(chosen) >= size or number > start + MOST_DRAWS * size:
            break
        found = grid.possible.get(point(number, grid.shape))
        if found is not None:
            chosen[found] = None
    for configuration in grid.possible.values():
        if len(chosen) >= size:
            break
        chosen[configuration] = None
    return list(chosen)


def shares(sizes: Sequence[int], total: int) -> list[int]:
    """Divide `total` as evenly as possible among items of at most `sizes`, the first ones before the last.

    >>> shares([10, 2, 10], 9)
    [4, 2, 3]
    """
    given = [0] * len(sizes)
    left = min(total, sum(sizes))
    while left:
        hungry = [at for at, size in enumerate(sizes) if given[at] < size]
        each = max(1, left // len(hungry))
        for at in hungry:
            more = min(each, sizes[at] - given[at], left)
            given[at] += more
            left -= more
    return given


def candidates(
    space: Space, budget: int, *, seed: int = 0, even: bool = False
) -> dict[int, list[Configuration]]:
    """What to try on each number of GPUs: `budget` configurations in all, or all there are; at least one on each.

    Half of them use all of the GPUs, unless `even`; on each number the policies share equally.
    """
    counts = list(space.default)
    budget = max(budget, len(counts))
    most = {gpus: sum(len(grid.possible) for grid in space.grids if grid.gpus == gpus) for gpus in counts}
    if even or len(counts) == 1:
        parts = shares([most[gpus] for gpus in counts], budget)
    else:
        *fewer, whole = counts
        others = [most[gpus] for gpus in fewer]
        mine = min(round(SHARE_OF_ALL_GPUS * budget), budget - len(fewer))
        mine = min(most[whole], max(mine, budget - sum(others)))
        parts = [*shares(others, budget - mine), mine]
    return {gpus: _on(space, gpus, part, seed) for gpus, part in zip(counts, parts, strict=True)}


def _on(space: Space, gpus: int, wanted: int, seed: int) -> list[Configuration]:
    """`wanted` configurations on a number of GPUs, taking the policies in turn."""
    grids = [grid for grid in space.grids if grid.gpus == gpus]
    parts = shares([len(grid.possible) for grid in grids], wanted)
    lists = [spread(grid, part, seed) for grid, part in zip(grids, parts, strict=True)]
    longest = max(map(len, lists), default=0)
    return [each[turn] for turn in range(longest) for each in lists if turn < len(each)]


WARM_UP_SHARE = 0.1
"""Share at the beginning of a window that is served but not counted, since every engine starts empty."""

LONGEST_S, SHORTEST_S = 600.0, 45.0
ENOUGH_REQUESTS = 2_000
"""A window in the last round lasts ten minutes, or until this many requests have come, but at least 45 s: answers
take seconds, and tens of them if requests are few.
"""

UNSEEN_TIMES = 2
"""Unseen samples for each sample of the last round. Only two configurations are compared on them, so more cost
little; and since windows of one trace may be busy or idle, as many as the search had may not prove a gain.
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """One part of a trace, and the noise of one clock.

    `number` seeds the clock and the draw of a generated workload. `start_share` (0 to 1) is the position in the trace
    of the request with which the window of `window_s` begins.
    """

    number: int
    start_share: float
    window_s: float


def sample(number: int, window_s: float, *, drawn: bool) -> Sample:
    """The sample of that number: of a file another window, of a generated workload the middle of another draw.

    The beginning is left out, since bursts have just begun there and conversations are at their first turns.
    """
    return Sample(number, 0.5 if drawn else van_der_corput(number + 1, 2), window_s)


def samples_in_all(searched: int) -> int:
    """How many samples a plan draws in all, with `searched` in the last round, including the unseen ones."""
    return (1 + UNSEEN_TIMES) * searched


def final_window_s(requests: Sequence[TraceRequest]) -> float:
    """Length of the windows in the last round."""
    duration_s = requests[-1].arrival_s - requests[0].arrival_s
    enough_s = duration_s * ENOUGH_REQUESTS / len(requests)
    return min(LONGEST_S, max(SHORTEST_S, enough_s), duration_s) or SHORTEST_S


def cut(requests: Sequence[TraceRequest], part: Sample) -> list[TraceRequest]:
    """The requests of a sample, in order of arrival, with the window's beginning at 0; at least one.

    The window begins with the request at its share, or earlier if it would pass the end of the trace.
    """
    first_s = requests[int(part.start_share * len(requests))].arrival_s
    start_s = max(requests[0].arrival_s, min(first_s, requests[-1].arrival_s - part.window_s))
    begin = bisect_left(requests, start_s, key=_arrival_s)
    # A request at the very end is included: a window as long as the trace holds all of it.
    end = max(begin + 1, bisect_right(requests, start_s + part.window_s, key=_arrival_s))
    return [replace(each, arrival_s=each.arrival_s - start_s) for each in requests[begin:end]]


def _arrival_s(request: TraceRequest) -> float:
    return request.arrival_s


def counted_from_s(requests: Sequence[TraceRequest], part: Sample) -> float:
    """From when on arrivals count; 0 if none came later."""
    warm_s = WARM_UP_SHARE * part.window_s
    return warm_s if requests[-1].arrival_s >= warm_s else 0.0
