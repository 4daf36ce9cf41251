"""Successive halving that never decides by noise: who goes on to the next rung, and how much each rung costs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from statistics import fmean
from typing import Any, Generic, TypeVar

from headway.planner.intervals import difference

SHRINK = 4
"""Of so many configurations one goes on from each rung, at most."""

FINALISTS = 8
"""So many may reach the last rung, however few there were."""

MOST_HALVINGS = 2
"""Of the window: first rungs have a quarter of it, since a queue needs time to build up."""

Item = TypeVar("Item", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Rung:
    """How configurations are measured before some of them go on: on so many samples of so many seconds each.

    `turn` counts from 0; `last` says that nobody goes on from here.
    """

    turn: int
    samples: int
    window_s: float
    last: bool


def rungs(configurations: int, samples: int, window_s: float) -> list[Rung]:
    """Rungs for so many configurations: the last has all samples and the whole window, each before it half of both,
    but no less than a quarter of the window.

    With a quarter of the configurations going on, no rung costs much more than the one before it.
    """
    count = 1
    while configurations > SHRINK ** (count - 1) * 2 * FINALISTS:
        count += 1
    return [
        Rung(
            turn=count - 1 - left,
            samples=ceil(samples / (1 << left)),
            window_s=window_s / (1 << min(left, MOST_HALVINGS)),
            last=left == 0,
        )
        for left in reversed(range(count))
    ]


def quota(configurations: int, rung: Rung) -> int:
    """How many of the so many there were at first may go on from a rung."""
    times_fewer: int = SHRINK ** (rung.turn + 1)
    return max(FINALISTS, ceil(configurations / times_fewer))


def sampled_s(configurations: int, samples: int, window_s: float) -> float:
    """Seconds of trace that a whole search simulates at most: rung by rung, those there times samples times window."""
    total = 0.0
    there = configurations
    for rung in rungs(configurations, samples, window_s):
        total += there * rung.samples * rung.window_s
        there = min(there, quota(configurations, rung))
    return total


@dataclass(frozen=True, slots=True)
class Verdict(Generic[Item]):
    """What a rung decides: `kept` go on, best first; `worse` surely are; `untold` may be as good as the best.

    The untold ones are more than the next rung has room for.
    """

    kept: tuple[Item, ...]
    worse: tuple[Item, ...]
    untold: tuple[Item, ...]


def judge(
    scores: Mapping[Item, Sequence[float]], room: int, *, place: Callable[[Item], Any] = lambda item: item
) -> Verdict[Item]:
    """Who goes on. Scores are by sample, the same samples for all, and lower is better; inf never goes on.

    The leader has the lowest mean. Another is surely worse if the 95 % interval of its difference from the leader,
    taken sample by sample, lies above 0. All the others overlap with the best, and go on as far as there is room, by
    their means; with a single sample there is no interval, so nobody is surely worse and the room alone decides.
    Equal means are ranked by `place`. If every score is inf, nobody can be told from the others. O(n log n).

    Source: Jamieson and Talwalkar 2016, arXiv:1502.07943 (halving); the interval in place of the rank alone is ours.
    """
    ranked = sorted(scores, key=lambda item: (fmean(scores[item]), place(item)))
    if not ranked:
        return Verdict((), (), ())
    leader = scores[ranked[0]]
    equal = [item for item in ranked if not _surely_worse(scores[item], leader)]
    told = set(equal)
    return Verdict(
        kept=tuple(equal[:room]),
        worse=tuple(item for item in ranked if item not in told),
        untold=tuple(equal[room:]),
    )


def _surely_worse(values: Sequence[float], leader: Sequence[float]) -> bool:
    if inf in leader:
        return False
    if inf in values:
        return True
    return difference(values, leader).low > 0
