"""Magnus's runs, each determined by plain data, and the choice of runs: all, or the fixed part of `--quick`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from hashlib import sha256
from itertools import chain, product
from typing import NamedTuple

from headway.lab.kept_runs import release
from headway.lab.simulation import fingerprint
from headway.predict.steps.calibration import Calibration
from headway.predict.steps.hardware import hardware
from headway.routing.magnus import WMA_LIMIT, WMA_SHARE
from headway_reproduce.magnus.data import DataSource, data_digest, load_tasks, requests_a_task
from headway_reproduce.magnus.engine import engine_costs, toy
from headway_reproduce.magnus.setting import (
    CAPACITY_TOKENS,
    CCB,
    HARDWARE,
    MAGNUS,
    MODEL,
    POLICIES,
    PREDICTING,
    TODAY,
    VS,
    VS_BATCH,
    VSQ,
    VSQ_BATCH,
)

# ---- what is varied ------------------------------------------------------------------------------------

LOADS = (0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Poisson arrivals, as shares of vs's throughput of the same requests, all at once (ours)."""
SEEDS = 3
"""Seeds, each with other requests, in another order, at other times."""


class Phi(NamedTuple):
    """WMA's threshold: a number of tokens, or a share of what a seat of the batch reads, whichever is larger."""

    limit: int
    share: float = 0.0

    def __str__(self) -> str:
        return f"{self.limit:,}, or {self.share:.0%} of reads" if self.share else f"{self.limit:,}"


PHI = Phi(WMA_LIMIT, WMA_SHARE)
"""The paper does not give it: the product's value, chosen from those below."""
FIXED_PHI, RECALLED_PHI = Phi(10_000), Phi(50_000)
"""The best fixed one for these lengths, and the one recalled from the paper."""
PHIS = (FIXED_PHI, RECALLED_PHI, PHI)
MORE_PHIS = (
    Phi(2_000),
    Phi(25_000),
    Phi(200_000),
    Phi(WMA_LIMIT, 0.25),
    Phi(WMA_LIMIT, 0.75),
    Phi(1, WMA_SHARE),
)
"""Further thresholds of the sweep, left out by `--quick`."""
PHI_SEED = 100
"""The sweep's own seed, so that no result is reported on the requests that the threshold was chosen with."""
PHI_LOADS = (1.0, 2.0, 4.0)
STRETCH, STRETCH_LOAD = 8, 1.0
"""Texts this many times as long, at most Lmax and Gmax: the value of a threshold for other lengths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MagnusChange:
    """A difference from the paper's setting, to find the reason of a figure (ours).

    `true_lengths` instead of predicted ones; a predictor that never learns (`learns`), sees nothing of inputs but their
    lengths (`text`), or is taught only every n-th row (`taught`); an engine without the fitted overhead, or whose cache
    takes `copies` times as long to copy; batches of `max_batch` at most; answers planned `safety` times as long as
    predicted; texts `stretch` times as long.
    """

    true_lengths: bool = False
    learns: bool = True
    text: bool = True
    overhead: bool = True
    copies: float = 1.0
    taught: int = 1
    max_batch: int | None = None
    safety: float = 1.0
    stretch: int = 1


UNCHANGED = MagnusChange()


@dataclass(frozen=True, slots=True, kw_only=True)
class MagnusRun:
    """All that determines one run; `rate_rps` 0 is all requests at once."""

    source: DataSource
    policy: str
    seed: int
    rate_rps: float
    phi: Phi = PHI
    change: MagnusChange = UNCHANGED

    def digest(self) -> str:
        """As `Digested.digest`; rows are distinguished by their content, not their path."""
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
    """The step costs of an instance under a policy, with the change applied."""
    copies = 0.0 if policy == TODAY else change.copies
    overhead_s = toy(copies=change.copies).fitted_overhead_s if change.overhead else 0.0
    return engine_costs(VSQ if policy == VSQ else VS, overhead_s, copies=copies)


@lru_cache(maxsize=32)
def _fingerprint(policy: str, change: MagnusChange) -> str:
    return fingerprint(run_costs(policy, change))


# ---- which runs are made -------------------------------------------------------------------------------

QUICK_LOADS = (0.8, 1.5, 4.0)
QUICK_CHANGED_LOADS = (4.0,)
LOW_LOAD = 0.8
"""A load at which ccb keeps up."""
CHANGED_LOADS = (1.5, 4.0)
MOST_IN_A_BATCH, SAFETY = 28, 1.5
TRUE_LENGTHS, NEVER_LEARNS = MagnusChange(true_lengths=True), MagnusChange(learns=False)
NO_TEXT, IN_PLACE = MagnusChange(text=False), MagnusChange(copies=0.0)
TAUGHT_LITTLE = MagnusChange(taught=50)
TAUGHT_NO_MORE = MagnusChange(taught=50, learns=False)
"""A predictor taught with one row in fifty, and the same one if it never learns."""
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
"""The variations, each with one thing changed (ours)."""
CHANGED = (VS, CCB, MAGNUS)

_SECONDS = {CCB: 6.0, TODAY: 5.0}
"""Policy -> seconds to simulate a run on one core, roughly; `_OTHER_SECONDS` for any other."""
_OTHER_SECONDS = 1.5
_LEARNING_SECONDS = 6.0
"""Additional seconds where a predictor is fitted again and again."""


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
"""Throughput of vs, with all requests at once, on an engine with that change."""
Pairs = list[tuple[MagnusPoint, str]]
"""Points, each with a policy that runs there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MagnusScope:
    """Which experiments are run on which rows, given the throughput of vs.

    The quick part has one seed; loads of 0.8, 1.5 and 4 of vs's capacity for every policy and for vLLM; fewer values of
    Phi, and none on longer texts; variations at a load of 4 alone, and nothing on a real engine. Requests and capacity
    are the same in both.
    """

    source: DataSource
    quick: bool = False

    def seeds(self, point: MagnusPoint) -> range:
        """The seeds of a point, each with other requests at other times."""
        if point.seed is not None:
            return range(point.seed, point.seed + 1)
        return range(1 if self.quick and point.load else SEEDS)

    def rates(self) -> list[MagnusPoint]:
        """The loads at which all systems are compared."""
        return [MagnusPoint(load=load) for load in (QUICK_LOADS if self.quick else LOADS)]

    def phis(self) -> list[MagnusPoint]:
        """The points of the sweep over Phi, on a seed of its own."""
        phis = PHIS if self.quick else (*PHIS, *MORE_PHIS)
        return [MagnusPoint(load=load, phi=phi, seed=PHI_SEED) for load, phi in product(PHI_LOADS, phis)]

    def stretched_phis(self) -> list[MagnusPoint]:
        """The same sweep on longer texts."""
        phis = () if self.quick else PHIS
        return [MagnusPoint(load=STRETCH_LOAD, phi=phi, change=STRETCHED, seed=PHI_SEED) for phi in phis]

    def changed(self) -> dict[str, list[MagnusPoint]]:
        """Name of a variation -> its points."""
        loads = QUICK_CHANGED_LOADS if self.quick else CHANGED_LOADS
        return {
            name: [MagnusPoint(load=load, change=change) for load in loads]
            for name, change in CHANGES.items()
        }

    def reason_points(self) -> list[MagnusPoint]:
        """The points that test the reasons of single statements: a low rate, and a predictor that knows little."""
        high = QUICK_CHANGED_LOADS[-1]
        return [
            *(MagnusPoint(load=LOW_LOAD, change=change) for change in (TRUE_LENGTHS, IN_PLACE)),
            *(MagnusPoint(load=high, change=change) for change in (TAUGHT_LITTLE, TAUGHT_NO_MORE)),
        ]

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
        """The number of all runs."""
        return len(self.capacity_runs()) + len(self.loaded_runs(lambda change: 1.0))

    def seconds_a_run(self) -> float:
        """The mean seconds of a run on one core, roughly."""
        pairs = self._capacity_pairs() + self._compared()
        return sum(map(_seconds, pairs)) / len(pairs)

    def _compared(self) -> Pairs:
        changed = [point for points in self.changed().values() for point in points]
        pairs = [
            *product(self.rates(), (*POLICIES, TODAY)),
            *product([*self.phis(), *self.stretched_phis()], (MAGNUS,)),
            *product(changed, CHANGED),
            *product(self.reason_points(), (CCB, MAGNUS)),
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
    """The part of a change that concerns all systems: the engine's and the texts'. Rates are shares of vs's
    throughput.
    """
    return MagnusChange(overhead=change.overhead, copies=change.copies, stretch=change.stretch)


def _seconds(pair: tuple[MagnusPoint, str]) -> float:
    """Seconds to simulate it on one core, roughly."""
    point, policy = pair
    learning = policy in PREDICTING and not point.change.true_lengths
    return _SECONDS.get(policy, _OTHER_SECONDS) + learning * _LEARNING_SECONDS


# ---- the same in words ---------------------------------------------------------------------------------


def facts(source: DataSource, capacity_rps: float) -> list[tuple[str, str]]:
    """What is run, in words."""
    tasks = load_tasks(source)
    training = sum(len(task.training) for task in tasks)
    workload = sum(len(task.workload) for task in tasks)
    return [
        ("hardware", f"simulated; {hardware(HARDWARE).provenance()}"),
        (
            "engine",
            f"{MODEL}, padded batches that return together; KV for {CAPACITY_TOKENS:,} tokens, which is {VS_BATCH} of "
            f"the longest; vsq has room for {VSQ_BATCH}; {1e3 * toy().fitted_overhead_s:.1f} ms a step fitted to "
            "the toy",
        ),
        (
            "data",
            f"{source.name}: {len(tasks)} tasks, {training:,} rows to train on and {workload:,} to serve, no "
            f"input on both sides; {source.counted}",
        ),
        (
            "workload",
            f"{requests_a_task(source):,} requests of each task a run, in random order, Poisson",
        ),
        (
            "load",
            f"1 is what {VS} gets through of the same requests, all at once, mean of {SEEDS} seeds: "
            f"{capacity_rps:.2f} req/s",
        ),
    ]
