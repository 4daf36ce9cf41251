"""Runs that are compared, on engines that live side by side."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle, groupby, islice
from typing import Any, Generic, TypeVar

from bench.engine_process import EngineKind, EngineProcess, HasWorkers, Work, do_in_turn

MOST_TOGETHER = 16
"""Engines at once, as many as `headway_real.py --broken` compares; each takes a GB of memory and more. Of more runs
that are compared the others come after them, and what differs then may be the machine."""
_Engine = TypeVar("_Engine", bound=HasWorkers)
_Found = TypeVar("_Found")
_Run = TypeVar("_Run")


@dataclass(frozen=True, slots=True)
class Lane(Generic[_Engine, _Found]):
    """One run: on which engine, what it does, and who keeps what came of it."""

    engine: EngineKind[_Engine]
    work: Work[_Engine, _Found]
    keep: Callable[[_Found], None]


def compared(runs: Iterable[_Run], by: Callable[[_Run], Any]) -> list[list[_Run]]:
    """The runs that are equal in `by`, MOST_TOGETHER at a time."""
    cells = [list(cell) for _, cell in groupby(sorted(runs, key=by), key=by)]
    return [cell[at : at + MOST_TOGETHER] for cell in cells for at in range(0, len(cell), MOST_TOGETHER)]


def measure_side_by_side(groups: Sequence[Sequence[Lane[Any, Any]]], say: Callable[[str], None]) -> None:
    """Do all runs, those of a group in turns of a tenth of a second.

    A machine's speed drifts by a quarter within minutes, so what is compared works side by side, and each engine goes
    by its own time (`TurnTime`). Engines are started when a group first needs them, and serve all groups; equal ones
    change places from group to group: in some virtual machines the first of many processes is slower than the last.
    """
    with ExitStack() as stack:
        engines: dict[EngineKind[Any], list[EngineProcess]] = defaultdict(list)
        for number, group in enumerate(groups):
            for kind, at_once in Counter(lane.engine for lane in group).items():
                while len(engines[kind]) < at_once:
                    engines[kind].append(stack.enter_context(EngineProcess(kind)))
            _measure_together(group, placed(group, engines, number))
            say(f"{number + 1} of {len(groups)} groups of runs done")


def placed(
    group: Sequence[Lane[Any, Any]], engines: Mapping[EngineKind[Any], Sequence[EngineProcess]], number: int
) -> list[EngineProcess]:
    """Which engine each lane of the `number`-th group has: of equal ones the next to that of the group before."""
    free = {kind: islice(cycle(pool), number % len(pool), None) for kind, pool in engines.items()}
    return [next(free[lane.engine]) for lane in group]


def _measure_together(group: Sequence[Lane[Any, Any]], engines: Sequence[EngineProcess]) -> None:
    ended = zip(group, do_in_turn(engines, [lane.work for lane in group]), strict=True)
    # One that failed is heard of when the others are kept.
    for lane, run in sorted(ended, key=lambda each: each[1].exception() is not None):
        lane.keep(run.result())
