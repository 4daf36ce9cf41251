"""The choice of FastServe's experiments: the axes, the variations that test a reason, and the part that `--quick`
keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from headway.lab.policy_choice import Parts
from headway_reproduce.fastserve.setting import (
    ABLATED,
    ABLATED_JOBS,
    BATCH,
    CLUSTER,
    CONTEXT_TOKENS,
    CV,
    DEFER,
    END_TO_END,
    FASTER_TRANSFORMER,
    FASTSERVE,
    FCFS,
    JOBS,
    LOAD,
    LONGEST,
    LOW_LOAD,
    MEMORIES,
    ORACLE,
    ORCA,
    ORCA_LIMITS,
    OTHER_ORDERS,
    PEAK,
    PEAK_CV,
    PEAK_RATE_RPS,
    PEAKS,
    PER_TOKEN,
    REACTIVE,
    RELEASED,
    SCALED,
    SCALED_MACHINES,
    SCHEDULERS,
    SHAREGPT,
    SHAREGPT_RATES_RPS,
    SINGLE,
    SMALL,
    SYSTEMS,
    THETA,
    THETAS,
    TODAY,
    Capacity,
    CapacityPoint,
    FastServePoint,
    PaperMachine,
    loaded,
    with_order,
    with_quantum,
    zipf,
)
from headway_reproduce.study_runs import StudyRun

RATE_AXIS, CV_AXIS, THETA_AXIS = "rate", "cv", "theta"
AXES = (RATE_AXIS, CV_AXIS, THETA_AXIS)
"""The settings that are varied, one at a time. Over theta the rate is fixed, as in the paper, so that the load
falls with theta.
"""
EQUAL_LOAD_AXIS = "theta at equal load"
"""Theta again, each at the same share of its own capacity, to show whether skew or load makes the difference."""
LOW_CV_AXIS = "cv below the knee"
"""CV again, at a load below the knee."""
FURTHER_AXES = (LOW_CV_AXIS, EQUAL_LOAD_AXIS)

LOADS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
"""Arrival rates, as shares of the baseline's throughput of the same requests, all at once."""
CVS = (1.0, 2.0, 4.0, 8.0)
"""Coefficients of variation of the Gamma-distributed times between arrivals."""
OVERLOAD = 1.25
"""The load above capacity at which reasons are tested and settings varied."""
HALF_LOAD = 0.5
"""The low rate of the fixed points."""
MEMORY_SHARES = (1.0, 0.75, 0.5, 0.35)
"""Shares of the device's KV blocks: Fig. 11(d), the number of KV slots."""
QUANTA = (0.5, 1.0, 2.0, 4.0, 8.0)
"""First quanta, as multiples of a decode step."""
RATIOS = (1.5, 2.0, 4.0, 8.0)
"""Quantum ratios: of a level's quantum to that of the level above. Fig. 10(d)."""
STARVE_S = (0.3, 1.0, 3.0, 10.0)
"""Seconds after which a job that does not run is promoted: the later version's, the released code's, and others."""
IDLE_JOBS = (0, 8, 16, 32, 64)
"""The paper's K: slots kept free."""
BURST_LEVELS = (0, 1, 2, 4)
"""The paper's K': levels whose jobs foretell a burst."""

SEEDS, ABLATION_SEEDS, CAPACITY_SEEDS = 3, 2, 3
"""Seeds of the end-to-end runs, of the others, and of measuring capacity."""

_SECONDS = {ORCA: 1.5, TODAY: 1.2, ORACLE: 2.0}
"""Policy -> seconds to simulate an end-to-end run on one core, roughly; `_OTHER_SECONDS` for any other."""
_OTHER_SECONDS, _ABLATED_SECONDS = 2.5, 0.7

Pairs = list[tuple[FastServePoint, str]]
"""Points, each with a policy that runs there."""


class FastServeVariation(NamedTuple):
    """One thing changed in the end-to-end setting, for every policy, to test a supposed reason."""

    name: str
    of: Callable[[FastServePoint], FastServePoint]


def _longer(point: FastServePoint) -> FastServePoint:
    return replace(point, lengths=replace(point.lengths, count=3 * point.lengths.count))


AS_IT_STANDS = FastServeVariation("as it stands", replace)
ORCA_AS_SHORT = FastServeVariation(
    "orca reserves the longest answer", lambda point: replace(point, orca=ORCA_LIMITS)
)
SLOTS_FOR_ALL = FastServeVariation(
    "KV of all in slots of the context", lambda point: replace(point, block_tokens=CONTEXT_TOKENS)
)
LONGER_RUN = FastServeVariation("3 times as many jobs", _longer)
NARROW_STATIC = FastServeVariation(
    "fastertransformer in batches of 16", lambda point: replace(point, static_batch=BATCH)
)
LONGER_LENGTHS = 0.0
"""The Zipf theta at which all lengths are equally likely: the longest work that the context holds."""
ONE_BATCH = FastServeVariation("one batch for both stages", lambda point: replace(point, one_batch=True))
ANY_BATCH = FastServeVariation("batches of any size", lambda point: replace(point, batch=None))
VARIATIONS = (ORCA_AS_SHORT, SLOTS_FOR_ALL, LONGER_RUN, NARROW_STATIC, ONE_BATCH, ANY_BATCH)
VARIED = (ORCA, FASTER_TRANSFORMER, FASTSERVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class FastServeScope:
    """Which experiments are run, given the baselines' capacities; by default all.

    End-to-end axes and ablation axes are separate. Capacity is measured with the same seeds in every scope, so that
    rates are the same.
    """

    quick: bool = False
    loads: Sequence[float] = LOADS
    cvs: Sequence[float] = CVS
    thetas: Sequence[float] = THETAS
    ablated_loads: Sequence[float] = LOADS
    ablated_cvs: Sequence[float] = CVS
    memory_shares: Sequence[float] = MEMORY_SHARES
    quanta: Sequence[float] = QUANTA
    ratios: Sequence[float] = RATIOS
    starve_s: Sequence[float] = STARVE_S
    other_orders: Sequence[str] = OTHER_ORDERS
    memories: Sequence[str] = MEMORIES
    idle_jobs: Sequence[int] = IDLE_JOBS
    burst_levels: Sequence[int] = BURST_LEVELS
    variations: Sequence[FastServeVariation] = VARIATIONS
    machines: Sequence[PaperMachine] = SCALED_MACHINES
    sharegpt_rates_rps: Sequence[float] = SHAREGPT_RATES_RPS

    def seeds(self, point: FastServePoint) -> range:
        """The seeds of a point, each with another draw of arrivals and lengths, and of the clock's noise."""
        if not point.rate_rps:
            return range(CAPACITY_SEEDS)
        if self.quick:
            return range(1)
        return range(SEEDS if point.machine == CLUSTER else ABLATION_SEEDS)

    # ---- where policies are compared ---------------------------------------------------------------

    def end_to_end(self, axis: str, capacity: Capacity) -> dict[float, FastServePoint]:
        """Setting -> point of Fig. 9, with the other axes at their standard values."""
        return _along(END_TO_END, axis, self.loads, self.cvs, self.thetas, capacity)

    def ablated(self, axis: str, capacity: Capacity) -> dict[float, FastServePoint]:
        """Setting -> point of Fig. 10 and 11(a) to (c).

        Over theta the load is fixed: at one rate the least skewed lengths would be many times what the engine holds.
        """
        held = EQUAL_LOAD_AXIS if axis == THETA_AXIS else axis
        return _along(ABLATED, held, self.ablated_loads, self.ablated_cvs, self.thetas, capacity)

    def stressed(self, capacity: Capacity) -> FastServePoint:
        """The ablations' point above capacity, at which their settings are varied."""
        return loaded(ABLATED, OVERLOAD, capacity)

    def in_slots(self, capacity: Capacity) -> FastServePoint:
        """The ablations' point with KV in slots of the longest job, as in the paper's engine."""
        point = loaded(ABLATED, LOAD, capacity)
        return replace(point, block_tokens=point.lengths.slot_tokens)

    def with_memory(self, capacity: Capacity) -> dict[float, FastServePoint]:
        """Share of the KV blocks -> point of Fig. 11(d)."""
        point = loaded(ABLATED, LOAD, capacity)
        return {share: replace(point, memory=share) for share in self.memory_shares}

    def varied(self, capacity: Capacity) -> dict[float, FastServePoint]:
        """Load -> point of the end-to-end settings that variations start from."""
        return {load: loaded(END_TO_END, load, capacity) for load in (LOAD, OVERLOAD) if load in self.loads}

    def killed_alone(self, capacity: Capacity) -> FastServePoint:
        """The ablations' point with one job a step; the rate falls with the width of the batch."""
        point = self.stressed(capacity)
        return replace(point, batch=1, rate_rps=point.rate_rps / BATCH)

    def slot_points(self, capacity: Capacity) -> dict[tuple[str, int], FastServePoint]:
        """(setting of the eviction, value) -> point: one setting varied, the other at its standard value."""
        values = {"idle_jobs": self.idle_jobs, "burst_levels": self.burst_levels}
        return {
            (name, value): replace(self.stressed(capacity), parts=Parts(eviction=f"proactive:{name}={value}"))
            for name, found in values.items()
            for value in found
        }

    def quantum_points(self, policy: str, capacity: Capacity) -> dict[tuple[str, float], FastServePoint]:
        """(setting of the queues, value) -> point: the first quantum in decode steps, and the quantum ratio."""
        point = self.stressed(capacity)
        return {
            **{("quantum", each): with_quantum(point, policy, each) for each in self.quanta},
            **{("ratio", each): with_order(point, policy, f"ratio={each:g}") for each in self.ratios},
        }

    def starved(self, capacity: Capacity) -> dict[float, FastServePoint]:
        """Seconds until a waiting job is promoted -> point."""
        point = self.stressed(capacity)
        return {each: with_order(point, FASTSERVE, f"starve_s={each:g}") for each in self.starve_s}

    def peaks(self, capacity: Capacity) -> dict[str, FastServePoint]:
        """Label -> point at which KV is counted in every step, each of them planned."""
        found = {f"{PEAK_RATE_RPS:g} req/s, CV {PEAK_CV:g}": PEAK.at(PEAK_RATE_RPS, PEAK_CV)}
        if not self.quick:
            found[f"{OVERLOAD:g} of capacity, CV {PEAK_CV:g}"] = loaded(PEAK, OVERLOAD, capacity, cv=PEAK_CV)
        return {name: replace(point, every_step=True) for name, point in found.items()}

    def scaled(self, capacity: Capacity) -> dict[PaperMachine, FastServePoint]:
        """Machine -> point, for all machines of one model at one rate: a share of the smallest machine's capacity."""
        smallest: dict[str, PaperMachine] = {}
        for machine in self.machines:
            smallest.setdefault(machine.model, machine)
        return {
            machine: CapacityPoint(machine, zipf(THETA), ORCA).at(
                LOAD * capacity(CapacityPoint(smallest[machine.model], zipf(THETA), ORCA))
            )
            for machine in self.machines
        }

    def per_token(self) -> dict[float, FastServePoint]:
        """Requests a second -> point of the ShareGPT curve."""
        rates = self.sharegpt_rates_rps
        return {rate: FastServePoint(machine=RELEASED, lengths=SHAREGPT, rate_rps=rate) for rate in rates}

    def narrow_static(self, capacity: Capacity) -> FastServePoint:
        """The low rate of the fixed points with FasterTransformer's batches half as wide."""
        return NARROW_STATIC.of(loaded(END_TO_END, HALF_LOAD, capacity))

    def candidates(self, place: CapacityPoint) -> list[CapacityPoint]:
        """A place with each of the lengths that its own were chosen from; none with `--quick`."""
        found = [] if self.quick else product(LONGEST, THETAS)
        count = place.lengths.count
        return [place._replace(lengths=zipf(theta, longest, count)) for longest, theta in found]

    # ---- runs --------------------------------------------------------------------------------------

    def capacity_runs(self) -> list[StudyRun]:
        """The runs that the rates of all others depend on."""
        return self._runs(self._places())

    def loaded_runs(self, capacity: Capacity) -> list[StudyRun]:
        """All other runs, the longest first."""
        return self._runs(sorted(self._compared(capacity), key=_seconds, reverse=True))

    def num_runs(self) -> int:
        """The number of all runs."""
        return len(self.capacity_runs()) + len(self.loaded_runs(lambda place: 1.0))

    def seconds_a_run(self) -> float:
        """The mean seconds of a run on one core, roughly."""
        pairs = self._places() + self._compared(lambda place: 1.0)
        return sum(map(_seconds, pairs)) / len(pairs)

    def _places(self) -> Pairs:
        """Where capacity is measured, and for which policy."""
        ablated = [ABLATED.with_theta(theta) for theta in self.thetas]
        ends = [END_TO_END.with_theta(theta) for theta in self.thetas]
        machines = [CapacityPoint(machine, zipf(THETA), ORCA) for machine in self.machines]
        chosen = [*self.candidates(END_TO_END), *self.candidates(ABLATED)]
        places = [
            END_TO_END,
            END_TO_END.with_theta(LONGER_LENGTHS),
            ABLATED,
            *ends,
            *ablated,
            *machines,
            *chosen,
            *([] if self.quick else [PEAK]),
        ]
        return [(place.at_once(), place.baseline) for place in dict.fromkeys(places)]

    def _compared(self, capacity: Capacity) -> Pairs:
        """Every point with every policy that runs there."""
        return list(dict.fromkeys([*self._end_to_end_pairs(capacity), *self._ablated_pairs(capacity)]))

    def _end_to_end_pairs(self, capacity: Capacity) -> Pairs:
        ends = [point for axis in AXES for point in self.end_to_end(axis, capacity).values()]
        further = [point for axis in FURTHER_AXES for point in self.end_to_end(axis, capacity).values()]
        varied = [what.of(point) for point in self.varied(capacity).values() for what in self.variations]
        low, high = (
            [loaded(place, load, capacity) for place in self.candidates(END_TO_END)]
            for load in (HALF_LOAD, OVERLOAD)
        )
        return [
            *product(ends, SYSTEMS),
            *product(further, (ORCA, FASTSERVE) if self.quick else SYSTEMS),
            (self.narrow_static(capacity), FASTER_TRANSFORMER),
            *product(varied, VARIED),
            *product(low, (ORCA, FASTER_TRANSFORMER)),
            *product(high, (ORCA, FASTSERVE)),
            *product(self.scaled(capacity).values(), SCALED),
            *product(self.per_token().values(), PER_TOKEN),
        ]

    def _ablated_pairs(self, capacity: Capacity) -> Pairs:
        ablated = [point for axis in AXES for point in self.ablated(axis, capacity).values()]
        stressed = self.stressed(capacity)
        return [
            *product([*ablated, stressed], dict.fromkeys([*SCHEDULERS, FCFS, *self.memories])),
            *(
                (point, policy)
                for policy in SCHEDULERS
                for point in self.quantum_points(policy, capacity).values()
            ),
            *product([self.killed_alone(capacity)], SCHEDULERS),
            *product(self.starved(capacity).values(), [FASTSERVE]),
            *product([stressed], self.other_orders),
            *product([*self.with_memory(capacity).values(), self.in_slots(capacity)], self.memories),
            *product(self.slot_points(capacity).values(), [FASTSERVE]),
            *product(self.peaks(capacity).values(), PEAKS),
        ]

    def _runs(self, compared: Iterable[tuple[FastServePoint, str]]) -> list[StudyRun]:
        found = (point.run(policy, seed) for point, policy in compared for seed in self.seeds(point))
        return list(dict.fromkeys(found))


def _along(
    place: CapacityPoint,
    axis: str,
    loads: Sequence[float],
    cvs: Sequence[float],
    thetas: Sequence[float],
    capacity: Capacity,
) -> dict[float, FastServePoint]:
    """Setting -> point of one axis, with the other two at their standard values."""
    if axis == RATE_AXIS:
        return {load: loaded(place, load, capacity) for load in loads}
    if axis == CV_AXIS:
        return {cv: loaded(place, LOAD, capacity, cv=cv) for cv in cvs}
    if axis == LOW_CV_AXIS:
        return {cv: loaded(place, LOW_LOAD, capacity, cv=cv) for cv in cvs}
    if axis == EQUAL_LOAD_AXIS:
        return {theta: loaded(place.with_theta(theta), LOAD, capacity) for theta in thetas}
    rate_rps = LOAD * capacity(place)
    return {theta: place.with_theta(theta).at(rate_rps) for theta in thetas}


ALL = FastServeScope()
QUICK = FastServeScope(
    quick=True,
    loads=(0.25, HALF_LOAD, LOW_LOAD, LOAD, OVERLOAD, 1.5),
    cvs=(CV, CVS[-1]),
    thetas=THETAS[::2],
    ablated_loads=(HALF_LOAD, LOW_LOAD, LOAD, OVERLOAD),
    ablated_cvs=(CV, CVS[-1]),
    memory_shares=(1.0, 0.5),
    quanta=QUANTA[::2],
    ratios=(2.0, 8.0),
    starve_s=(),
    other_orders=(FCFS,),
    memories=(FASTSERVE, DEFER, REACTIVE),
    idle_jobs=(IDLE_JOBS[0], IDLE_JOBS[-1]),
    burst_levels=(BURST_LEVELS[0], BURST_LEVELS[-1]),
    variations=(ORCA_AS_SHORT, SLOTS_FOR_ALL, LONGER_RUN, NARROW_STATIC),
    machines=SCALED_MACHINES[-2:],
    sharegpt_rates_rps=(),
)
"""One seed, and the ends and the middle of every axis; no candidates of lengths, no curve per token."""


def _seconds(pair: tuple[FastServePoint, str]) -> float:
    """Seconds to simulate it on one core, roughly."""
    point, policy = pair
    if point.machine in (SINGLE, SMALL):
        return _ABLATED_SECONDS * point.lengths.count / ABLATED_JOBS
    return _SECONDS.get(policy, _OTHER_SECONDS) * point.lengths.count / JOBS
