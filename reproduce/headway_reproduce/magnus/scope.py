"""Which of Magnus's experiments are run: all of them, or the fixed part of `--quick`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product

from headway_reproduce.magnus.data import DataSource
from headway_reproduce.magnus.run import UNCHANGED, Change, MagnusRun
from headway_reproduce.magnus.setting import (
    CCB,
    LOADS,
    MAGNUS,
    PHI,
    PHI_LOADS,
    PHI_SEED,
    PHIS,
    POLICIES,
    PREDICTING,
    SEEDS,
    TODAY,
    VS,
)

QUICK_LOADS = (0.8, 1.5, 4.0)
QUICK_PHI_LOADS = (4.0,)
CHANGED_LOADS = (1.5, 4.0)
MOST_IN_A_BATCH, SAFETY = 28, 1.5

CHANGES = {
    "true lengths": Change(true_lengths=True),
    "a predictor that never learns": Change(learns=False),
    f"answers planned {SAFETY:g} times as long": Change(safety=SAFETY),
    f"batches of {MOST_IN_A_BATCH} at most": Change(max_batch=MOST_IN_A_BATCH),
    "a cache that is written in place": Change(copies=False),
    "no overhead of the engine": Change(overhead=False),
}
"""What is changed, one thing at a time (ours)."""
CHANGED = (VS, CCB, MAGNUS)

_SECONDS = {CCB: 6.0, TODAY: 5.0}
"""Policy -> about how long simulating a run takes on one core; `_OTHER_SECONDS` for any other."""
_OTHER_SECONDS = 1.5
_LEARNING_SECONDS = 6.0
"""More where a predictor is fitted again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One setting that policies are compared at; `load` 0 is all requests at once."""

    load: float
    phi: int = PHI
    change: Change = UNCHANGED
    seed: int | None = None

    def __str__(self) -> str:
        return f"{self.load:g} of vs's capacity, Phi {self.phi:,}" if self.load else "all at once"


Capacity = Callable[[Change], float]
"""Requests a second that vs gets through, all at once, on an engine with that change."""
Pairs = list[tuple[Point, str]]
"""Points, each with a policy that is asked there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """How much is run on which rows, given what vs gets through.

    The quick part has one seed; loads of 0.8, 1.5 and 4 of vs's capacity for every policy and for vLLM; Phi is swept
    at a load of 4 alone; nothing is changed to find reasons, and nothing runs on a real engine. Requests and capacity
    are the same in both.
    """

    source: DataSource
    quick: bool = False

    def seeds(self, point: Point) -> range:
        """Each draws other requests at other times."""
        if point.seed is not None:
            return range(point.seed, point.seed + 1)
        return range(1 if self.quick and point.load else SEEDS)

    def rates(self) -> list[Point]:
        """Where everybody is compared."""
        return [Point(load=load) for load in (QUICK_LOADS if self.quick else LOADS)]

    def phis(self) -> list[Point]:
        """The sweep, on a seed of its own."""
        loads = QUICK_PHI_LOADS if self.quick else PHI_LOADS
        return [Point(load=load, phi=phi, seed=PHI_SEED) for load, phi in product(loads, PHIS)]

    def changed(self) -> dict[str, list[Point]]:
        """What is changed -> points with it."""
        if self.quick:
            return {}
        return {
            name: [Point(load=load, change=change) for load in CHANGED_LOADS]
            for name, change in CHANGES.items()
        }

    # ---- runs --------------------------------------------------------------------------------------

    def capacity_points(self) -> list[Point]:
        """All requests at once, on each engine there is."""
        changes = [point.change for points in self.changed().values() for point in points]
        return [
            Point(load=0.0, change=change) for change in dict.fromkeys([UNCHANGED, *map(engine_of, changes)])
        ]

    def capacity_runs(self) -> list[MagnusRun]:
        """The runs that the rates of all others depend on."""
        return self._runs([(point, VS) for point in self.capacity_points()], lambda change: 0.0)

    def loaded_runs(self, capacity: Capacity) -> list[MagnusRun]:
        """All other runs, the longest first."""
        return self._runs(sorted(self._compared(), key=_seconds, reverse=True), capacity)

    def num_runs(self) -> int:
        """All runs together."""
        return len(self.capacity_runs()) + len(self.loaded_runs(lambda change: 1.0))

    def seconds_a_run(self) -> float:
        """About how long a run takes on one core, in the mean."""
        pairs = [*((point, VS) for point in self.capacity_points()), *self._compared()]
        return sum(map(_seconds, pairs)) / len(pairs)

    def _compared(self) -> Pairs:
        changed = [point for points in self.changed().values() for point in points]
        return list(
            dict.fromkeys(
                [
                    *product(self.rates(), (*POLICIES, TODAY)),
                    *product(self.phis(), (MAGNUS,)),
                    *product(changed, CHANGED),
                ]
            )
        )

    def _runs(self, compared: Iterable[tuple[Point, str]], capacity: Capacity) -> list[MagnusRun]:
        found = (
            self.run(point, policy, seed, capacity)
            for point, policy in compared
            for seed in self.seeds(point)
        )
        return list(dict.fromkeys(found))

    def run(self, point: Point, policy: str, seed: int, capacity: Capacity) -> MagnusRun:
        """A policy at a point."""
        change = point.change
        return MagnusRun(
            source=self.source,
            policy=policy,
            seed=seed,
            rate_rps=float(f"{point.load * capacity(engine_of(change)):.4g}") if point.load else 0.0,
            phi=point.phi if policy in PREDICTING else PHI,
            change=change if policy in PREDICTING else engine_of(change),
        )


def engine_of(change: Change) -> Change:
    """What of a change is the engine's, and so everybody's: rates are shares of what vs gets through with it."""
    return Change(overhead=change.overhead, copies=change.copies)


def _seconds(pair: tuple[Point, str]) -> float:
    """About how long simulating it takes on one core."""
    point, policy = pair
    learning = policy in PREDICTING and not point.change.true_lengths
    return _SECONDS.get(policy, _OTHER_SECONDS) + learning * _LEARNING_SECONDS
