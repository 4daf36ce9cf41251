"""Which configurations are tried: few of many, spread over every setting, the same again for the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from headway.planner.configuration import Configuration
from headway.planner.space import Grid, Index, Space

PRIMES = (2, 3, 5, 7, 11, 13)
"""Bases of the axes of a grid."""

SEED_STRIDE = 1_009
"""How far apart in the sequence two seeds begin."""

MOST_DRAWS = 50
"""Points drawn for each configuration that is wanted; what is still missing then is taken in order."""

SHARE_OF_ALL_GPUS = 0.5
"""Of the configurations tried, those on all of the GPUs; smaller numbers share the rest."""


def van_der_corput(number: int, base: int) -> float:
    """The digits of `number` in a base, mirrored at the point: of any n in a row, about n x w lie in a stretch of w.

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


def spread(grid: Grid, wanted: int, seed: int = 0) -> list[Configuration]:
    """So many of a grid's possible configurations, all of them if there are fewer; the plain one comes first.

    Every beginning of the list is spread over every axis. Another seed gives others, but for the plain one.
    O(wanted) where much of the grid is possible.
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
    """`total` dealt out as evenly as may be among those who can take `sizes` at most, the first ones before the last.

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
    """What is tried on each number of GPUs: `budget` configurations in all, or all there are; at least one on each.

    All of the GPUs get half of them, unless it is to be `even`; on each number the policies share alike.
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
    """So many on a number of GPUs, the policies in turn."""
    grids = [grid for grid in space.grids if grid.gpus == gpus]
    parts = shares([len(grid.possible) for grid in grids], wanted)
    lists = [spread(grid, part, seed) for grid, part in zip(grids, parts, strict=True)]
    longest = max(map(len, lists), default=0)
    return [each[turn] for turn in range(longest) for each in lists if turn < len(each)]
