"""FastServe's experiments: the workloads, the engines and the policies, fixed before the first run.

Source: Wu et al., "Fast Distributed Inference Serving for Large Language Models" (arXiv 2305.05920, first version of
2023, and its later versions; NSDI 2026 with released code). What the papers leave open is marked "ours".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from headway.lab.policy_choice import OWN_PARTS, Parts
from headway.predict.steps.hardware import hardware
from headway_reproduce.ablations import row_of, with_setting
from headway_reproduce.fastserve.machine import (
    BATCH,
    BLOCK_TOKENS,
    CLUSTER,
    HARDWARE,
    RELEASED,
    SCALED_MACHINES,
    SINGLE,
    SMALL,
    PaperMachine,
)
from headway_reproduce.study_runs import StudyRun

# ---- what is asked for ---------------------------------------------------------------------------------

CONTEXT_TOKENS = 2048
"""The context of GPT-175B and OPT, which Orca reserves for every job, as "Orca (Max)" does in the vLLM paper."""
ORCA_PLACES = f"iteration-level:reserve_tokens={CONTEXT_TOKENS}"
ORCA_LIMITS = "iteration-level"
"""Orca with knowledge of the workload's longest answer, reserving no more than that: a variation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Laws of prompts and answers in the form that `headway simulate --trace` takes, and the longest of each."""

    input: str
    output: str
    longest_input: int
    limit: int
    count: int

    @property
    def slot_tokens(self) -> int:
        """KV tokens of the longest possible job."""
        return self.longest_input + self.limit


JOBS, ABLATED_JOBS = 500, 1000
"""Jobs of an end-to-end run and of an ablation, each of which lasts to the last finish. Ours."""
THETAS = (0.7, 0.9, 1.1, 1.3, 1.5)
LONGEST = (512, 1024)
"""Longest lengths that the workloads are chosen from, with `THETAS`: 1,024 and 1,024 tokens fill the context."""
THETA, LONGEST_TOKENS = 0.7, 1024
"""Ours, since the paper gives neither: chosen by its own fixed points (`fixed_points.py`), not by any gain."""
ABLATED_THETA = 1.5
"""Theta of the ablations on one GPU, with the same longest length: chosen by the rate at which the paper's engine
is full there. Prompts must be long there too, since in the paper many outlast the quanta of the first levels.
"""


def zipf(
    theta: float, longest: int = LONGEST_TOKENS, count: int = JOBS, *, longest_input: int | None = None
) -> Lengths:
    """Prompts and answers by the same law, P(k) ~ k^-theta, up to the same length unless prompts have their own."""
    of_input = longest_input or longest
    return Lengths(
        input=f"zipf:theta={theta:g},max={of_input}",
        output=f"zipf:theta={theta:g},max={longest}",
        longest_input=of_input,
        limit=longest,
        count=count,
    )


SHAREGPT = Lengths(input="sharegpt-1024", output="sharegpt-1024", longest_input=1024, limit=2048, count=400)
"""First turns with a prompt of up to 1,024 tokens. Source: the released code, which drops longer ones, and pairs of
more than 2,048 together (one in a thousand here); it sends up to 400."""

CV, LOAD = 1.0, 1.1
"""The standard values while something else is varied; the load is a share of the baseline's capacity. It is above
the knee: in the paper CV and theta gain 1.9 and more everywhere, rates up to the knee nothing.
"""
LOW_LOAD = 0.9
"""A load below the knee, for varying CV there."""
SHAREGPT_RATES_RPS = (0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0)
"""From 1.5 on the notebook's rates; those below are ours."""
PEAK_RATE_RPS, PEAK_CV, PEAK_OUTPUT, PEAK_INPUT = 64.0, 4.0, 20, 512
"""The workload for the peak of KV. Source: the later version of the paper; the longest prompt is ours."""

# ---- compared systems ----------------------------------------------------------------------------------

ORCA, FASTER_TRANSFORMER, TODAY = "orca", "fastertransformer", "vllm"
"""The paper's baselines, and vLLM as it is now."""
FASTSERVE, ORACLE = "fastserve", "srpt-oracle"
"""FastServe as first published; and least remaining work first, with true answer lengths."""
NO_PREEMPT, PREEMPT = "mlfq-no-preempt", "mlfq-preempt"
"""Ablations of its scheduler: every job starts at the top; and iterations are killed when a quantum ends."""
DEFER, REACTIVE, RECOMPUTE = "defer", "reactive-swap", "recompute"
"""Ablations of its memory: newcomers wait; KV is swapped only when memory is full; KV is dropped."""
V3, FIXED_PRIORITY = "fastserve-v3", "fixed-priority"
"""FastServe with the constants of the later version; and a fixed priority by the prompt's length."""
FCFS, VLLM_V0 = "fastserve-fcfs", "vllm-v0"
"""Its engine first come, first served; and the vLLM of its time."""

SYSTEMS = (ORCA, FASTER_TRANSFORMER, TODAY, FASTSERVE, ORACLE)
SCHEDULERS = (FASTSERVE, NO_PREEMPT, PREEMPT)
OTHER_ORDERS = (FCFS, FIXED_PRIORITY, V3)
MEMORIES = (FASTSERVE, DEFER, REACTIVE, RECOMPUTE)
SCALED = (ORCA, FASTSERVE)
PER_TOKEN = (VLLM_V0, FCFS, FASTSERVE, TODAY)
PEAKS = (FCFS, FASTSERVE)

RUN_WHOEVER_IS_RESIDENT = (ORCA, FASTER_TRANSFORMER, TODAY)
"""Policies that fill a batch for each stage; the others choose by themselves among residents waiting for a step."""

PAPER_PER_TOKEN_S = {
    1.5: (0.035, 0.045, 0.045),
    2.0: (0.110, 0.091, 0.047),
    3.0: (0.972, 0.849, 0.063),
    4.0: (1.59, 1.459, 0.106),
    5.0: (None, None, 0.331),
}
"""Requests a second -> mean seconds per token of vLLM 0.6.1, FastServe-FCFS and FastServe (released notebook)."""


# ---- points --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FastServePoint:
    """One setting that policies are compared at; `rate_rps` 0 is all requests at once.

    `parts` replace the policies' own, `orca` replaces Orca's batching. KV is in blocks of `block_tokens`: slots, where
    the longest job fits one. Variations change the rest: one batch for all stages, the width of a batch (None: all
    residents run), that of FasterTransformer's (None: of all stages together), and the share of the device's blocks
    that exists. With `every_step` KV is counted in each step.
    """

    machine: PaperMachine
    lengths: Lengths
    cv: float = CV
    rate_rps: float = 0.0
    parts: Parts = OWN_PARTS
    orca: str = ORCA_PLACES
    block_tokens: int = BLOCK_TOKENS
    one_batch: bool = False
    batch: int | None = BATCH
    static_batch: int | None = None
    memory: float = 1.0
    every_step: bool = False

    def __str__(self) -> str:
        load = f"{self.rate_rps:.4g} req/s, CV {self.cv:g}" if self.rate_rps else "all at once"
        return f"{self.machine.title}, answers {self.lengths.output}, {load}"

    def trace(self) -> str:
        """The workload as `headway simulate --trace` takes it."""
        lengths = self.lengths
        arrivals = f"gamma:rate={self.rate_rps:.4g},cv={self.cv:g}" if self.rate_rps else "at-once"
        return f"gen:{arrivals}/input={lengths.input}/output={lengths.output}/count={lengths.count}"

    def run(self, policy: str, seed: int) -> StudyRun:
        """The run of a policy at this setting."""
        limits = self.machine.limits(self.block_tokens)
        staged = limits.pipeline_stages > 1 and policy in RUN_WHOEVER_IS_RESIDENT
        width = self._static_width() if policy == FASTER_TRANSFORMER else self.batch
        changed = replace(limits, batch_width=width, num_blocks=int(self.memory * limits.num_blocks))
        return StudyRun(
            hardware=HARDWARE,
            model=self.machine.model,
            tp=self.machine.tp,
            trace=self.trace(),
            policy=policy,
            parts=replace(self.parts, batching=self.orca) if policy == ORCA else self.parts,
            seed=seed,
            max_output_tokens=self.lengths.limit,
            limits=changed,
            micro_batches=staged and not self.one_batch,
            every_step=self.every_step,
        )

    def _static_width(self) -> int | None:
        """The number of jobs in a batch of FasterTransformer."""
        if self.static_batch is not None or self.batch is None:
            return self.static_batch
        return self.batch * self.machine.stages


class CapacityPoint(NamedTuple):
    """A machine and the lengths it serves, whose capacity the loads there are shares of, and whether KV is in slots."""

    machine: PaperMachine
    lengths: Lengths
    baseline: str
    in_slots: bool = False

    def at_once(self) -> FastServePoint:
        """The point with all requests at 0 s."""
        return self.at(0.0)

    def at(self, rate_rps: float, cv: float = CV) -> FastServePoint:
        """The point with arrivals at a rate."""
        return FastServePoint(
            machine=self.machine,
            lengths=self.lengths,
            cv=cv,
            rate_rps=rate_rps,
            block_tokens=self.lengths.slot_tokens if self.in_slots else BLOCK_TOKENS,
        )

    def with_theta(self, theta: float) -> CapacityPoint:
        """The same with lengths of another skew, up to the same longest."""
        longest, count, of_input = self.lengths.limit, self.lengths.count, self.lengths.longest_input
        return self._replace(lengths=zipf(theta, longest, count, longest_input=of_input))


END_TO_END = CapacityPoint(CLUSTER, zipf(THETA), ORCA)


ABLATED = CapacityPoint(SINGLE, zipf(ABLATED_THETA, count=ABLATED_JOBS), FCFS)
PEAK = CapacityPoint(
    SMALL, zipf(THETA, PEAK_OUTPUT, ABLATED_JOBS, longest_input=PEAK_INPUT), FCFS, in_slots=True
)
"""KV in slots of the longest job, so that jobs are counted, as the paper does: its engine has no paging."""

Capacity = Callable[[CapacityPoint], float]
"""The throughput of a place's baseline, with all requests at once."""


def loaded(place: CapacityPoint, load: float, capacity: Capacity, *, cv: float = CV) -> FastServePoint:
    """The point with arrivals at a share of a place's capacity."""
    return place.at(load * capacity(place), cv)


def with_quantum(point: FastServePoint, policy: str, quantum: float) -> FastServePoint:
    """A point at which the policy's first quantum is this many decode steps."""
    return with_order(point, policy, f"quantum_s={quantum * point.machine.decode_step_s():.4g}")


def with_order(point: FastServePoint, policy: str, setting: str) -> FastServePoint:
    """A point with another value for a setting of the policy's order."""
    order = with_setting(row_of(policy).order, setting)
    return replace(point, parts=replace(OWN_PARTS, order=order))


# ---- what is varied ------------------------------------------------------------------------------------

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


# ---- the same in words ---------------------------------------------------------------------------------


def facts(capacity: Capacity) -> list[tuple[str, str]]:
    """What is run, in words."""
    return [
        ("hardware", f"simulated; {hardware(HARDWARE).provenance()}"),
        *((machine.title, machine.sizes()) for machine in (CLUSTER, SINGLE)),
        (
            "workload",
            f"{JOBS:,} jobs a run, to the last finish, {ABLATED_JOBS:,} in the ablations; prompts and answers by "
            f"Zipf's law up to {LONGEST_TOKENS:,} tokens each, theta {THETA:g}, {ABLATED_THETA:g} in the "
            "ablations: chosen by the paper's own fixed points",
        ),
        (
            "load",
            f"1 is what the baseline gets through of the same jobs, all at once, mean of {CAPACITY_SEEDS} seeds: "
            f"{ORCA}, which reserves the context of {CONTEXT_TOKENS:,} tokens for each, "
            f"{capacity(END_TO_END):.2f} req/s end to end; {FCFS} {capacity(ABLATED):.2f} "
            "req/s for the ablations",
        ),
    ]
