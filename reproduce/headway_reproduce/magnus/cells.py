"""Magnus's runs: each decided by plain data, and which of them are made: all, or the fixed part of `--quick`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from hashlib import sha256
from itertools import chain, product

from headway.lab.kept_runs import release
from headway.lab.simulation import fingerprint
from headway.predict.steps.calibration import Calibration
from headway_reproduce.magnus.data import DataSource, data_digest
from headway_reproduce.magnus.engine import engine_costs, toy
from headway_reproduce.magnus.setting import (
    CCB,
    LOADS,
    MAGNUS,
    MORE_PHIS,
    PHI,
    PHI_LOADS,
    PHI_SEED,
    PHIS,
    POLICIES,
    PREDICTING,
    SEEDS,
    STRETCH,
    STRETCH_LOAD,
    TODAY,
    VS,
    VSQ,
    Phi,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MagnusChange:
    """What differs from the paper's setting, to find the reason of a figure (ours).

    `true_lengths` in place of predicted ones; a predictor that never learns (`learns`), or sees nothing of what inputs
    say but their lengths (`text`); an engine without the fitted overhead, or whose cache is not copied; batches of
    `max_batch` at most; answers planned `safety` times as long as predicted; texts `stretch` times as long.
    """

    true_lengths: bool = False
    learns: bool = True
    text: bool = True
    overhead: bool = True
    copies: bool = True
    max_batch: int | None = None
    safety: float = 1.0
    stretch: int = 1


UNCHANGED = MagnusChange()


@dataclass(frozen=True, slots=True, kw_only=True)
class MagnusRun:
    """All that decides one run; `rate_rps` 0 is all requests at once."""

    source: DataSource
    policy: str
    seed: int
    rate_rps: float
    phi: Phi = PHI
    change: MagnusChange = UNCHANGED

    def digest(self) -> str:
        """As `Digested.digest`; rows are told apart by what they say, not where they lie."""
        plain = asdict(replace(self, source=DataSource()))
        said = [
            release(),
            data_digest(self.source),
            _fingerprint(self.policy, self.change),
            *sorted(plain.items()),
        ]
        return sha256(repr(said).encode()).hexdigest()


@lru_cache(maxsize=8)
def run_costs(policy: str, change: MagnusChange) -> Calibration:
    """What an instance costs under a policy, with what is changed."""
    copies = change.copies and policy != TODAY
    overhead_s = toy(copies=change.copies).fitted_overhead_s if change.overhead else 0.0
    return engine_costs(VSQ if policy == VSQ else VS, overhead_s, copies=copies)


@lru_cache(maxsize=32)
def _fingerprint(policy: str, change: MagnusChange) -> str:
    return fingerprint(run_costs(policy, change))


# ---- which runs are made -------------------------------------------------------------------------------

QUICK_LOADS = (0.8, 1.5, 4.0)
QUICK_CHANGED_LOADS = (4.0,)
CHANGED_LOADS = (1.5, 4.0)
MOST_IN_A_BATCH, SAFETY = 28, 1.5
TRUE_LENGTHS, NEVER_LEARNS = MagnusChange(true_lengths=True), MagnusChange(learns=False)
NO_TEXT, IN_PLACE = MagnusChange(text=False), MagnusChange(copies=False)
STRETCHED = MagnusChange(stretch=STRETCH)

CHANGES = {
    "true lengths": TRUE_LENGTHS,
    "a predictor that never learns": NEVER_LEARNS,
    "a predictor without the inputs' text": NO_TEXT,
    f"answers planned {SAFETY:g} times as long": MagnusChange(safety=SAFETY),
    f"batches of {MOST_IN_A_BATCH} at most": MagnusChange(max_batch=MOST_IN_A_BATCH),
    "a cache that is written in place": IN_PLACE,
    "no overhead of the engine": MagnusChange(overhead=False),
}
"""What is changed, one thing at a time (ours)."""
CHANGED = (VS, CCB, MAGNUS)

_SECONDS = {CCB: 6.0, TODAY: 5.0}
"""Policy -> about how long simulating a run takes on one core; `_OTHER_SECONDS` for any other."""
_OTHER_SECONDS = 1.5
_LEARNING_SECONDS = 6.0
"""More where a predictor is fitted again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MagnusPoint:
    """One setting that policies are compared at; `load` 0 is all requests at once."""

    load: float
    phi: Phi = PHI
    change: MagnusChange = UNCHANGED
    seed: int | None = None

    def __str__(self) -> str:
        return f"{self.load:g} of vs's capacity, Phi {self.phi}" if self.load else "all at once"


Capacity = Callable[[MagnusChange], float]
"""Requests a second that vs gets through, all at once, on an engine with that change."""
Pairs = list[tuple[MagnusPoint, str]]
"""Points, each with a policy that is asked there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MagnusScope:
    """How much is run on which rows, given what vs gets through.

    The quick part has one seed; loads of 0.8, 1.5 and 4 of vs's capacity for every policy and for vLLM; fewer values of
    Phi, and none on longer texts; things are changed to find reasons at a load of 4 alone, and nothing runs on a real
    engine. Requests and capacity are the same in both.
    """

    source: DataSource
    quick: bool = False

    def seeds(self, point: MagnusPoint) -> range:
        """Each draws other requests at other times."""
        if point.seed is not None:
            return range(point.seed, point.seed + 1)
        return range(1 if self.quick and point.load else SEEDS)

    def rates(self) -> list[MagnusPoint]:
        """The loads at which all systems are compared."""
        return [MagnusPoint(load=load) for load in (QUICK_LOADS if self.quick else LOADS)]

    def phis(self) -> list[MagnusPoint]:
        """The sweep, on a seed of its own."""
        phis = PHIS if self.quick else (*PHIS, *MORE_PHIS)
        return [MagnusPoint(load=load, phi=phi, seed=PHI_SEED) for load, phi in product(PHI_LOADS, phis)]

    def stretched_phis(self) -> list[MagnusPoint]:
        """The same on longer texts."""
        phis = () if self.quick else PHIS
        return [MagnusPoint(load=STRETCH_LOAD, phi=phi, change=STRETCHED, seed=PHI_SEED) for phi in phis]

    def changed(self) -> dict[str, list[MagnusPoint]]:
        """What is changed -> points with it."""
        loads = QUICK_CHANGED_LOADS if self.quick else CHANGED_LOADS
        return {
            name: [MagnusPoint(load=load, change=change) for load in loads]
            for name, change in CHANGES.items()
        }

    # ---- runs --------------------------------------------------------------------------------------

    def capacity_runs(self) -> list[MagnusRun]:
        """The runs that the rates of all others depend on."""
        return self._runs(self._capacity_pairs(), lambda change: 0.0)

    def _capacity_pairs(self) -> Pairs:
        """All requests at once under vs, on each engine there is."""
        points = [*chain.from_iterable(self.changed().values()), *self.stretched_phis()]
        changes = [point.change for point in points]
        engines = dict.fromkeys([UNCHANGED, *map(engine_of, changes)])
        return [(MagnusPoint(load=0.0, change=change), VS) for change in engines]

    def loaded_runs(self, capacity: Capacity) -> list[MagnusRun]:
        """All other runs, the longest first."""
        return self._runs(sorted(self._compared(), key=_seconds, reverse=True), capacity)

    def num_runs(self) -> int:
        """All runs together."""
        return len(self.capacity_runs()) + len(self.loaded_runs(lambda change: 1.0))

    def seconds_a_run(self) -> float:
        """About how long a run takes on one core, in the mean."""
        pairs = self._capacity_pairs() + self._compared()
        return sum(map(_seconds, pairs)) / len(pairs)

    def _compared(self) -> Pairs:
        changed = [point for points in self.changed().values() for point in points]
        pairs = [
            *product(self.rates(), (*POLICIES, TODAY)),
            *product([*self.phis(), *self.stretched_phis()], (MAGNUS,)),
            *product(changed, CHANGED),
        ]
        return list(dict.fromkeys(pairs))

    def _runs(self, compared: Iterable[tuple[MagnusPoint, str]], capacity: Capacity) -> list[MagnusRun]:
        seeded = ((*pair, seed) for pair in compared for seed in self.seeds(pair[0]))
        return list(dict.fromkeys(self.run(*each, capacity) for each in seeded))

    def run(self, point: MagnusPoint, policy: str, seed: int, capacity: Capacity) -> MagnusRun:
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


def engine_of(change: MagnusChange) -> MagnusChange:
    """The part of a change that all systems have: the engine's and the texts'. Rates are shares of vs's throughput."""
    return MagnusChange(overhead=change.overhead, copies=change.copies, stretch=change.stretch)


def _seconds(pair: tuple[MagnusPoint, str]) -> float:
    """About how long simulating it takes on one core."""
    point, policy = pair
    learning = policy in PREDICTING and not point.change.true_lengths
    return _SECONDS.get(policy, _OTHER_SECONDS) + learning * _LEARNING_SECONDS
