"""The runs of `headway_real`: contenders, engines, the plan of cells, and the same runs simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from math import ceil, inf
from pathlib import Path
from typing import Any

from bench.command import say
from bench.figures import GOODPUT, MEAN_JCT, METRICS
from bench.governor import REFERENCES, governor_figures, ways
from bench.real_runs import (
    CONTROL,
    PRIORITY,
    STOCK,
    CapacityFacts,
    Contender,
    EngineSpec,
    KeptRun,
    Run,
    TwinEngine,
    capacity_rps,
    keep_runs,
    kept,
    records,
)
from bench.side_by_side import Gauge
from bench.streams import (
    MAX_OUTPUT_TOKENS,
    NONE,
    TAUGHT,
    TWO,
    Targets,
    asked_by,
    targets_from,
    untaught_stream,
)
from headway.core.batch_shape import BatchShape
from headway.engine.demo_model import DEMO
from headway.engine.stepped_engine import SteppedEngine
from headway.json_file import made_once
from headway.lab.kept_runs import open_folder
from headway.lab.real_engine import EngineClock, WallTime, serve
from headway.predict.steps.calibration import StepSeconds
from headway.results import Summary, summarize
from headway.traces import TraceRequest, at_once

SLOTS = 64
"""Requests that an engine holds at once: the most seats of stock, and Headway's worker slots for paused requests."""
BLOCK_TOKENS = 32
WARM_REQUESTS, WARM_RPS, WARM_SEED = 30, 30.0, 97
_GOVERNOR = ("planned_steps", "distrusting_steps", "untimed_steps", "policy_faults")
"""Counters that show what the governor did."""


def warm_up() -> list[TraceRequest]:
    """Requests that an engine serves before it counts as started."""
    return untaught_stream(WARM_RPS, WARM_REQUESTS, WARM_SEED)


def memory(kv_blocks: int, host_gib: float = 0.0) -> EngineSpec:
    """The engine with this KV memory; 0 blocks: vLLM's choice."""
    return EngineSpec(
        model=DEMO,
        flags=("--enforce-eager",),
        slots=SLOTS,
        block_tokens=BLOCK_TOKENS,
        kv_blocks=kv_blocks,
        host_gib=host_gib,
        warm=warm_up,
    )


def taught(policy: str) -> Contender:
    """A policy with lengths from the taught predictor."""
    return Contender(policy, policy, predictor=TAUGHT)


def governor_of(runs: Sequence[KeptRun]) -> dict[str, Any]:
    """The governor's decisions over several runs, by its own report and by the engine's counters."""
    return {
        **governor_figures(
            [run.changes for run in runs], [max(each.finished_s for each in run.served) for run in runs]
        ),
        "counters": {name: sum(run.counters.get(name, 0) for run in runs) for name in _GOVERNOR},
    }


SEATS = (4, 8, 16, 32, 64)
SWEEP_LOAD, SWEEP_SEED = 1.0, 96
"""A stream that is used for no comparison. A run counts only beside those that ran side by side with it."""
CAPACITY_REQUESTS = 400
"""Enough that the last long answers hardly count, and few enough to serve before every stream."""
CAPACITY_SEED = 99
OWN = "policy"
"""The name of `--policy`'s policy in `--system`."""
SYSTEMS = (STOCK.name, PRIORITY.name, OWN)

Grid = dict[tuple[str, float], dict[str, list[Run]]]
"""By kind of clients and load: every system's runs, one for each seed."""


class Measured(CapacityFacts, frozen=True, kw_only=True):
    """What was measured before anything was compared: capacity, stock's best seats, and stock at light load."""

    capacity_seats: int
    light: Summary
    tokens_a_step: int
    num_blocks: int


@dataclass(frozen=True)
class Plan:
    """Everything that determines the runs; measurements so far are in `out`."""

    out: Path
    requests_a_cell: int
    seeds: int
    loads: Sequence[float]
    kinds: Sequence[str]
    systems: Sequence[str]
    policy: str
    engine: EngineSpec

    @property
    def requests_a_stream(self) -> int:
        """Requests of each of a cell's streams."""
        return ceil(self.requests_a_cell / self.seeds)

    def open(self) -> None:
        """Make the folder, or continue in it. Raises ConfigError if it has runs of another kind."""
        asked = {
            "requests_a_stream": self.requests_a_stream,
            "kv_blocks": self.engine.kv_blocks,
            "host_gib": self.engine.host_gib,
        }
        open_folder(self.out / "bench.json", asked, "bench")

    @cached_property
    def prepared(self) -> Measured:
        """The preparation, measured now unless it is stored."""
        return made_once(self.out / "prepared.json", Measured, lambda: prepare(self))

    @cached_property
    def targets(self) -> Targets:
        """The targets of all runs' clients."""
        return targets_from(self.prepared.light)

    def stream(self, kind: str, load: float, seed: int) -> list[TraceRequest]:
        """The requests of a kind of clients: equal for every system and, except for targets, for every kind."""
        drawn = untaught_stream(load * self.prepared.capacity_rps, self.requests_a_stream, seed)
        return asked_by(drawn, kind, self.targets, seed)

    def requests(self, run: Run) -> list[TraceRequest]:
        """The stream of a run."""
        return self.stream(run.kind or NONE, run.load, run.seed)

    # ---- stock alone -----------------------------------------------------------------------------------

    def sweep(self) -> list[Run]:
        """Stock's runs at every number of seats."""
        return [Run(STOCK, "", seats, SWEEP_LOAD, SWEEP_SEED) for seats in SEATS]

    @cached_property
    def swept(self) -> dict[str, dict[int, Summary]]:
        """The sweep's results for each kind of clients, by seats."""
        served = {run.seats: kept(run, self.out).served for run in self.sweep()}
        return {
            kind: {
                seats: summarize(records(self.stream(kind, SWEEP_LOAD, SWEEP_SEED), each))
                for seats, each in served.items()
            }
            for kind in self.kinds
        }

    def best(self, kind: str) -> dict[str, int]:
        """Stock's best seats for each metric of a kind of clients; the first metric counts most."""
        metrics = (MEAN_JCT,) if kind == NONE else METRICS
        return {metric: best_seats(self.swept[kind], metric) for metric in metrics}

    def width(self, kind: str) -> int:
        """The batch width of all others: stock's best for the metric that counts most."""
        return next(iter(self.best(kind).values()))

    # ---- what is compared ------------------------------------------------------------------------------

    def grid(self) -> Grid:
        """Every cell."""
        return {(kind, load): self._cell(kind, load) for kind, load in product(self.kinds, self.loads)}

    def _cell(self, kind: str, load: float) -> dict[str, list[Run]]:
        found: dict[str, list[Run]] = {}
        if STOCK.name in self.systems:
            for seats in sorted(set(self.best(kind).values())):
                found[stock_name(seats)] = self._runs(STOCK, "", seats, load)
            found[CONTROL.name] = self._runs(CONTROL, "", self.best(kind)[MEAN_JCT], load)
        if PRIORITY.name in self.systems and kind == TWO:
            found[PRIORITY.name] = self._runs(PRIORITY, kind, self.width(kind), load)
        if OWN in self.systems:
            found[self.policy] = self._runs(taught(self.policy), kind, self.width(kind), load)
        return found

    def broken_grid(self) -> Grid:
        """The cells of `--broken`; a contender without targets and predictions serves all kinds at once."""
        return {
            (kind, load): {
                each.name: self._runs(each, kind if each.predictor else "", self.width(kind), load)
                for each in broken_contenders(self.policy)
            }
            for kind, load in product(self.kinds, self.loads)
        }

    def _runs(self, contender: Contender, kind: str, seats: int, load: float) -> list[Run]:
        return [Run(contender, kind, seats, load, seed) for seed in range(self.seeds)]


def capacity_burst() -> list[TraceRequest]:
    """Requests that all arrive at once, to measure capacity."""
    return at_once(untaught_stream(1.0, CAPACITY_REQUESTS, CAPACITY_SEED))


def best_seats(swept: dict[int, Summary], metric: str) -> int:
    """The best seats of a sweep, None being the worst; among equals the least mean JCT, then the fewest seats."""
    sign = -1 if metric == GOODPUT else 1

    def rank(seats: int) -> tuple[float, float, int]:
        summary = swept[seats]
        value = getattr(summary, metric)
        return (inf if value is None else sign * value, summary.mean_jct_s or inf, seats)

    return min(swept, key=rank)


def broken_contenders(policy: str) -> list[Contender]:
    """Rivals without predictions, and the policy with honest predictions and with every kind of broken ones."""
    return [Contender(name, name) for name in REFERENCES] + [
        Contender(
            policy if way.predictor == TAUGHT and way.steps == 1 else f"{policy}, {way.name}",
            policy,
            predictor=way.predictor,
            steps=way.steps,
        )
        for way in ways(TAUGHT)
    ]


def stock_name(seats: int) -> str:
    """Stock's name in a cell."""
    return f"{STOCK.name}, {seats} seats"


# ---- on the real engine ------------------------------------------------------------------------------

LIGHT_LOAD, LIGHT_REQUESTS = 0.2, 200
CAPACITY_SEATS = (16, 32, 64)
"""With the most seats memory is so short that some KV is computed twice; capacity is the best of these."""
LIGHT_SEED = 98


def prepare(plan: Plan) -> Measured:
    """Measure the preparation."""
    with plan.engine.of(STOCK).serving() as engine:
        found_rps, capacity_seats = max(
            (throughput_rps(engine, WallTime(), seats=seats), seats) for seats in CAPACITY_SEATS
        )
        say(f"capacity: {found_rps:.1f} requests a second, at {capacity_seats} seats")
        light = untaught_stream(LIGHT_LOAD * found_rps, LIGHT_REQUESTS, LIGHT_SEED)
        STOCK.put_in(engine, SLOTS)
        served, sizes = serve(engine, light, LIGHT_SEED, own_stops=True), engine.sizes
        return Measured(
            capacity_rps=found_rps,
            capacity_seats=capacity_seats,
            light=summarize(records(light, served)),
            asynchronous=sizes.asynchronous,
            tokens_a_step=sizes.max_num_batched_tokens,
            num_blocks=sizes.num_blocks,
        )


def throughput_rps(engine: SteppedEngine, clock: EngineClock, *, seats: int) -> float:
    """Stock's throughput with this number of seats."""
    return capacity_rps(engine, clock, burst=capacity_burst(), seats=seats, seed=CAPACITY_SEED)


def measure(plan: Plan, runs: Sequence[Run]) -> None:
    """Do all runs that are not stored yet; clocks follow the machine's speed, for which capacity is constant."""
    found = plan.prepared
    work = partial(throughput_rps, seats=found.capacity_seats)
    gauge = Gauge(plan.engine.of(STOCK), work, found.capacity_rps)
    keep_runs(plan.out, plan.engine, runs, plan.requests, gauge=gauge)


# ---- simulated ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Faster:
    """A step law that is `speed` times as fast."""

    steps: StepSeconds
    speed: float

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of one step of this shape."""
        return self.steps.step_s(shape) / self.speed


def at_capacity(engine: TwinEngine, found: Measured) -> TwinEngine:
    """The engine at the machine's speed when capacity was measured, for which loads and targets are defined.

    The machine may have had another speed when its costs were measured. Copies keep their times.
    """
    costs = engine.costs
    speed = found.capacity_rps / simulated_capacity_rps(engine, found.capacity_seats)
    faster = replace(
        costs,
        step=Faster(costs.step, speed),
        host_s=costs.host_s / speed,
        host_job_s=costs.host_job_s / speed,
        ungraphed_s=costs.ungraphed_s / speed,
    )
    return replace(engine, costs=faster)


def simulated_capacity_rps(engine: TwinEngine, seats: int) -> float:
    """Stock's simulated throughput if all requests arrive at once."""
    run = Run(STOCK, "", seats, 0.0, CAPACITY_SEED)
    served = engine.records(run, capacity_burst(), max_output_tokens=MAX_OUTPUT_TOKENS)
    return len(served) / max(record.finished_s or 0.0 for record in served)
