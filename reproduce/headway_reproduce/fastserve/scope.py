"""Which of FastServe's experiments are run: all of them, or the fixed part of `--quick`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from headway.lab.policy_choice import OWN_PARTS, Parts
from headway.policies.presets import find_preset
from headway.sim.killed_steps import KILLING_ROWS
from headway_reproduce.fastserve.setting import (
    ABLATION_SEEDS,
    BATCH,
    BURST_LEVELS,
    CAPACITY_SEEDS,
    CLUSTER,
    CV,
    CVS,
    DEFER,
    FASTER_TRANSFORMER,
    FASTSERVE,
    IDLE_JOBS,
    LOAD,
    LOADS,
    LOW_LOAD,
    MEMORIES,
    ORACLE,
    ORCA,
    OTHER_ORDERS,
    OVERLOAD,
    PEAK_CV,
    PEAK_OUTPUT,
    PEAK_RATE_RPS,
    PEAKS,
    PER_TOKEN,
    QUANTA,
    RECOMPUTE,
    RELEASED,
    SCALED,
    SCHEDULER_LOADS,
    SCHEDULERS,
    SEEDS,
    SHAREGPT,
    SHAREGPT_RATES_RPS,
    SINGLE,
    SMALL,
    STAGES,
    STARVE_S,
    SYSTEMS,
    THETA,
    THETAS,
    TODAY,
    Lengths,
    Machine,
    Point,
    gpt_175b,
    zipf,
)
from headway_reproduce.study_runs import StudyRun

RATE_AXIS, CV_AXIS, THETA_AXIS = "rate", "cv", "theta"
AXES = (RATE_AXIS, CV_AXIS, THETA_AXIS)
"""What is varied end to end, one at a time."""

QUICK_SETTINGS = {
    RATE_AXIS: (LOW_LOAD, LOAD, OVERLOAD),
    CV_AXIS: (CV, CVS[-1]),
    THETA_AXIS: (THETAS[0], THETA, THETAS[-1]),
}
FULL_SETTINGS = {RATE_AXIS: LOADS, CV_AXIS: CVS, THETA_AXIS: THETAS}

MORE_JOBS = 3
"""Times as many, for the question of what a longer run changes."""
SCARCE_MEMORY = 0.25
"""Share of the device's blocks, for the question of what memory changes."""
FURTHER_TOKENS = 1536
"""So that every answer may have 2,048 tokens, for the question of what reserving for the longest answer costs."""

_SECONDS = {ORCA: 0.9, TODAY: 1.0, FASTER_TRANSFORMER: 2.6, ORACLE: 1.3, DEFER: 1.0}
"""Policy -> about how long simulating a run takes on one core; `_OTHER_SECONDS` for any other."""
_OTHER_SECONDS = 3.5


class Place(NamedTuple):
    """A machine and the lengths it serves: where capacity is measured."""

    machine: Machine
    lengths: Lengths

    def at_once(self) -> Point:
        """All requests at 0 s."""
        return Point(machine=self.machine, lengths=self.lengths)


END_TO_END = Place(CLUSTER, zipf(THETA))
ABLATED = Place(SINGLE, zipf(THETA))
PEAK = Place(SMALL, zipf(THETA, PEAK_OUTPUT))

Capacity = Callable[[Place], float]
"""Requests a second that the baseline gets through at a place, all at once."""

Pairs = list[tuple[Point, str]]
"""Points, each with a policy that is asked there."""


class What(NamedTuple):
    """A variation of the end-to-end setting (ours): what differs from it, for every policy."""

    name: str
    one_batch: bool = False
    batch: int | None = BATCH
    memory: float = 1.0
    further_tokens: int = 0
    times_jobs: int = 1

    def of(self, point: Point) -> Point:
        """A point with it changed."""
        lengths = replace(point.lengths, count=self.times_jobs * point.lengths.count)
        return replace(
            point,
            lengths=lengths,
            one_batch=self.one_batch,
            batch=self.batch,
            memory=self.memory,
            further_tokens=self.further_tokens,
        )


VARIATIONS = (
    What("one batch for both stages", one_batch=True),
    What("room for 2,048 tokens reserved", further_tokens=FURTHER_TOKENS),
    What("a quarter of the KV blocks", memory=SCARCE_MEMORY),
    What(f"{MORE_JOBS} times as many jobs", times_jobs=MORE_JOBS),
    What("batches of any size", batch=None),
)
VARIED = (ORCA, TODAY, FASTSERVE)


@dataclass(frozen=True, slots=True)
class Scope:
    """How much is run, given what the baseline gets through.

    The quick part has one seed: end to end the loads 0.5, 0.9 and 1.25, CV 1 and 8, theta 0.7, 1.1 and 1.5; the
    scheduler's ablation at a load of 1.25 with three of the quanta, that of memory there and at CV 8, without
    recompute; the fewest and the most slots kept free; the paper's peak of KV; neither variations, nor more GPUs, nor
    the ShareGPT curve. Capacity is measured with the same seeds in both, so that rates are the same.
    """

    quick: bool = False

    def seeds(self, point: Point) -> range:
        """Each is another draw of arrivals and lengths, and of the clock's noise."""
        if not point.rate_rps:
            return range(CAPACITY_SEEDS)
        if self.quick:
            return range(1)
        return range(SEEDS if point == _end_to_end(point) else ABLATION_SEEDS)

    # ---- where policies are compared ---------------------------------------------------------------

    def settings(self, axis: str) -> Sequence[float]:
        """What an axis is varied over."""
        return (QUICK_SETTINGS if self.quick else FULL_SETTINGS)[axis]

    def end_to_end(self, axis: str, capacity: Capacity) -> dict[float, Point]:
        """Setting -> point, the other two axes as they stand."""
        found: dict[float, Point] = {}
        for setting in self.settings(axis):
            place = Place(CLUSTER, zipf(setting)) if axis == THETA_AXIS else END_TO_END
            load = setting if axis == RATE_AXIS else LOAD
            found[setting] = loaded(place, load, capacity, cv=setting if axis == CV_AXIS else CV)
        return found

    def varied(self, capacity: Capacity) -> dict[float, Point]:
        """Load -> point, of the end-to-end settings that variations start from."""
        return {} if self.quick else {load: loaded(END_TO_END, load, capacity) for load in (LOAD, OVERLOAD)}

    def scheduler_loads(self) -> Sequence[float]:
        """Loads of the scheduler's ablation."""
        return (OVERLOAD,) if self.quick else SCHEDULER_LOADS

    def quanta(self) -> Sequence[float]:
        """First quanta, in decode steps."""
        return QUANTA[::2] if self.quick else QUANTA

    def starve_s(self) -> Sequence[float]:
        """Waits after which a job is promoted."""
        return () if self.quick else STARVE_S

    def other_orders(self) -> Sequence[str]:
        """Policies of the scheduler's ablation without quanta to vary."""
        return () if self.quick else OTHER_ORDERS

    def memories(self) -> Sequence[str]:
        """Policies of the memory's ablation."""
        return tuple(policy for policy in MEMORIES if policy != RECOMPUTE) if self.quick else MEMORIES

    def memory_settings(self, axis: str) -> Sequence[float]:
        """What an axis of the memory's ablation is varied over."""
        if self.quick:
            return (OVERLOAD,) if axis == RATE_AXIS else (CVS[-1],)
        return FULL_SETTINGS[axis]

    def memory(self, axis: str, capacity: Capacity) -> dict[float, Point]:
        """Setting -> point of the memory's ablation."""
        found: dict[float, Point] = {}
        for setting in self.memory_settings(axis):
            load, cv = (setting, CV) if axis == RATE_AXIS else (LOAD, setting)
            found[setting] = loaded(ABLATED, load, capacity, cv=cv)
        return found

    def idle_jobs(self) -> Sequence[int]:
        """K."""
        return (IDLE_JOBS[0], IDLE_JOBS[-1]) if self.quick else IDLE_JOBS

    def burst_levels(self) -> Sequence[int]:
        """K'."""
        return (BURST_LEVELS[0], BURST_LEVELS[-1]) if self.quick else BURST_LEVELS

    def peaks(self, capacity: Capacity) -> dict[str, Point]:
        """What it is called -> point at which KV is counted, every step of it planned."""
        paper = Point(machine=SMALL, lengths=PEAK.lengths, cv=PEAK_CV, rate_rps=PEAK_RATE_RPS)
        found = {f"{PEAK_RATE_RPS:g} req/s, CV {PEAK_CV:g}": paper}
        if not self.quick:
            found[f"{OVERLOAD:g} of capacity, CV {PEAK_CV:g}"] = loaded(PEAK, OVERLOAD, capacity, cv=PEAK_CV)
        return {name: replace(point, every_step=True) for name, point in found.items()}

    def machines(self) -> Sequence[Machine]:
        """Machines of growing size."""
        return () if self.quick else [gpt_175b(stages) for stages in STAGES]

    def scaled(self, capacity: Capacity) -> dict[Machine, Point]:
        """Machine -> point, each at the same share of its own capacity."""
        return {machine: loaded(Place(machine, zipf(THETA)), LOAD, capacity) for machine in self.machines()}

    def per_token(self) -> dict[float, Point]:
        """Requests a second -> point of the ShareGPT curve."""
        rates_rps = () if self.quick else SHAREGPT_RATES_RPS
        return {
            rate_rps: Point(machine=RELEASED, lengths=SHAREGPT, rate_rps=rate_rps) for rate_rps in rates_rps
        }

    # ---- runs --------------------------------------------------------------------------------------

    def places(self) -> list[Place]:
        """Where capacity is measured."""
        thetas = [Place(CLUSTER, zipf(theta)) for theta in self.settings(THETA_AXIS)]
        machines = [Place(machine, zipf(THETA)) for machine in self.machines()]
        return list(dict.fromkeys([*thetas, ABLATED, *machines, *([] if self.quick else [PEAK])]))

    def capacity_runs(self) -> list[StudyRun]:
        """The runs that the rates of all others depend on."""
        return self._runs((place.at_once(), ORCA) for place in self.places())

    def loaded_runs(self, capacity: Capacity) -> list[StudyRun]:
        """All other runs, the longest first."""
        return self._runs(sorted(self._compared(capacity), key=_seconds, reverse=True))

    def _compared(self, capacity: Capacity) -> Pairs:
        """Every point with every policy that is asked there."""
        ends = [point for axis in AXES for point in self.end_to_end(axis, capacity).values()]
        varied = [what.of(point) for point in self.varied(capacity).values() for what in VARIATIONS]
        memory = [point for axis in (RATE_AXIS, CV_AXIS) for point in self.memory(axis, capacity).values()]
        pairs = [
            *product(ends, SYSTEMS),
            *product(varied, VARIED),
            *self._scheduler_pairs(capacity),
            *product(memory, self.memories()),
            *((point, FASTSERVE) for point in self.slot_points(capacity).values()),
            *product(self.peaks(capacity).values(), PEAKS),
            *product(self.scaled(capacity).values(), SCALED),
            *product(self.per_token().values(), PER_TOKEN),
        ]
        return list(dict.fromkeys(pairs))

    def _scheduler_pairs(self, capacity: Capacity) -> Pairs:
        points = [loaded(ABLATED, load, capacity) for load in self.scheduler_loads()]
        swept = product(points, SCHEDULERS, self.quanta())
        return [
            *((with_quantum(point, policy, quantum), policy) for point, policy, quantum in swept),
            *((with_starvation(*pair), FASTSERVE) for pair in product(points, self.starve_s())),
            *product(points, self.other_orders()),
        ]

    def slot_points(self, capacity: Capacity) -> dict[tuple[str, int], Point]:
        """(setting of the eviction, value) -> point: one of them varied, the other as it stands."""
        point = loaded(ABLATED, OVERLOAD, capacity)
        values = {"idle_jobs": self.idle_jobs(), "burst_levels": self.burst_levels()}
        return {
            (name, value): replace(point, parts=Parts(eviction=f"proactive:{name}={value}"))
            for name, found in values.items()
            for value in found
        }

    def num_runs(self) -> int:
        """All runs together."""
        return len(self.capacity_runs()) + len(self.loaded_runs(lambda place: 1.0))

    def _runs(self, compared: Iterable[tuple[Point, str]]) -> list[StudyRun]:
        found = (point.run(policy, seed) for point, policy in compared for seed in self.seeds(point))
        return list(dict.fromkeys(found))

    def seconds_a_run(self) -> float:
        """About how long a run takes on one core, in the mean."""
        pairs = [(place.at_once(), ORCA) for place in self.places()] + self._compared(lambda place: 1.0)
        return sum(map(_seconds, pairs)) / len(pairs)


def loaded(place: Place, load: float, capacity: Capacity, *, cv: float = CV) -> Point:
    """Arrivals at a share of a place's capacity."""
    return Point(machine=place.machine, lengths=place.lengths, cv=cv, rate_rps=load * capacity(place))


def _end_to_end(point: Point) -> Point:
    """The end-to-end point of the same lengths and arrivals."""
    lengths = replace(point.lengths, count=END_TO_END.lengths.count)
    return Point(machine=CLUSTER, lengths=lengths, cv=point.cv, rate_rps=point.rate_rps)


def with_quantum(point: Point, policy: str, quantum: float) -> Point:
    """A point at which the policy's first quantum is so many decode steps."""
    return _with_order(point, policy, f"quantum_s={quantum * point.machine.decode_step_s():.4g}")


def with_starvation(point: Point, starve_s: float) -> Point:
    """A point at which fastserve promotes who has not run for so long."""
    return _with_order(point, FASTSERVE, f"starve_s={starve_s:g}")


def _with_order(point: Point, policy: str, setting: str) -> Point:
    row = KILLING_ROWS.get(policy) or find_preset(policy)
    order = f"{row.order}{',' if ':' in row.order else ':'}{setting}"
    return replace(point, parts=replace(OWN_PARTS, order=order))


def _seconds(pair: tuple[Point, str]) -> float:
    """About how long simulating it takes on one core."""
    point, policy = pair
    return _SECONDS.get(policy, _OTHER_SECONDS) * point.lengths.count / zipf(THETA).count
