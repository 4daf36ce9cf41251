"""Runs that are compared, on engines that live side by side."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle, groupby, islice
from statistics import fmean
from typing import Any, Generic, TypeVar

from bench.engine_process import EngineKind, EngineProcess, HasWorkers, Work, do_in_turn

MOST_TOGETHER = 16
"""Engines at once, as many as `headway_real.py --broken` compares; each takes a GB of memory and more. Of more runs
that are compared the others come after them, and what differs then may be the machine."""
_GAUGED = 2
_Engine = TypeVar("_Engine", bound=HasWorkers)
_Found = TypeVar("_Found")
_Run = TypeVar("_Run")


@dataclass(frozen=True, slots=True)
class Lane(Generic[_Engine, _Found]):
    """One run: on which engine, what it does, and who keeps what came of it."""

    engine: EngineKind[_Engine]
    work: Work[_Engine, _Found]
    keep: Callable[[_Found], None]


@dataclass(frozen=True, slots=True)
class Gauge(Generic[_Engine]):
    """What says how fast the machine is now: work of an engine, and its rate, by any unit, when it was first done.

    Loads and targets were set by the machine as it was then; it may be half as fast, or twice, an hour later.
    """

    engine: EngineKind[_Engine]
    work: Work[_Engine, float]
    first_rate: float

    def speed(self, engines: Sequence[EngineProcess]) -> float:
        """How many times as fast the machine is as it was, by the last two of these engines in turn."""
        chosen = engines[-_GAUGED:]
        return fmean(run.result() for run in do_in_turn(chosen, [self.work] * len(chosen))) / self.first_rate


def compared(runs: Iterable[_Run], by: Callable[[_Run], Any]) -> list[list[_Run]]:
    """The runs that are equal in `by`, MOST_TOGETHER at a time."""
    cells = [list(cell) for _, cell in groupby(sorted(runs, key=by), key=by)]
    return [cell[at : at + MOST_TOGETHER] for cell in cells for at in range(0, len(cell), MOST_TOGETHER)]


def measure_side_by_side(
    groups: Sequence[Sequence[Lane[Any, Any]]], say: Callable[[str], None], gauge: Gauge[Any] | None = None
) -> None:
    """Do all runs, those of a group in turns of a tenth of a second.

    A machine's speed drifts by a quarter within minutes, so what is compared works side by side, and each engine goes
    by its own time (`TurnTime`). Engines are started when a group first needs them, and serve all groups; equal ones
    change places from group to group: in some virtual machines the first of many processes is slower than the last.
    With a `gauge` the machine's speed is taken before each group, and clocks go by it.
    """
    with ExitStack() as stack:
        engines: dict[EngineKind[Any], list[EngineProcess]] = defaultdict(list)
        for number, group in enumerate(groups):
            at_once = Counter(lane.engine for lane in group)
            if gauge is not None:
                at_once[gauge.engine] = max(1, at_once[gauge.engine])
            for kind, count in at_once.items():
                while len(engines[kind]) < count:
                    engines[kind].append(stack.enter_context(EngineProcess(kind)))
            speed = 1.0 if gauge is None else gauge.speed(engines[gauge.engine])
            _measure_together(group, placed(group, engines, number), speed)
            at_speed = "" if gauge is None else f", the machine {speed:.2f} times as fast as it was"
            say(f"{number + 1} of {len(groups)} groups of runs done{at_speed}")


def placed(
    group: Sequence[Lane[Any, Any]], engines: Mapping[EngineKind[Any], Sequence[EngineProcess]], number: int
) -> list[EngineProcess]:
    """Which engine each lane of the `number`-th group has: of equal ones the next to that of the group before."""
    free = {kind: islice(cycle(pool), number % len(pool), None) for kind, pool in engines.items()}
    return [next(free[lane.engine]) for lane in group]


def _measure_together(
    group: Sequence[Lane[Any, Any]], engines: Sequence[EngineProcess], speed: float
) -> None:
    ended = zip(group, do_in_turn(engines, [lane.work for lane in group], speed), strict=True)
    # One that failed is heard of when the others are kept.
    for lane, run in sorted(ended, key=lambda each: each[1].exception() is not None):
        lane.keep(run.result())
