"""The runs of `headway_real`: contenders, engines, the plan of cells, and the same runs simulated."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from bench.command import say
from bench.figures import GOODPUT, MEAN_JCT, METRICS
from bench.gain.broken_predictions import (
    REFERENCES,
    Change,
    GovernorWatch,
    governor_figures,
    told_wrongly,
    ways,
    wrong_by,
)
from bench.serving_engine import EngineTime, Served, ServingEngine, StockPolicy, WallTime
from bench.side_by_side import Gauge, Lane, compared, measure_side_by_side
from bench.streams import (
    MAX_OUTPUT_TOKENS,
    NONE,
    TAUGHT,
    TWO,
    Targets,
    asked_by,
    estimates_of,
    targets_from,
    untaught_stream,
)
from headway.core.batch_shape import BatchShape
from headway.core.record import Outcome, Record
from headway.engine.demo_model import DEMO
from headway.engine.kv.host import HostKv
from headway.engine.settings import EngineSettings
from headway.errors import ConfigError
from headway.lab.policy_choice import OWN_PARTS, policy_factory
from headway.predict.steps.calibration import Calibration, StepSeconds
from headway.results import Summary, summarize
from headway.sim.lengths import GivenLengths
from headway.sim.limits import EngineLimits
from headway.sim.simulation import System, simulate
from headway.traces import TraceRequest
from headway.whole_file import write_whole

# ---- contenders, engines and runs --------------------------------------------------------------------

SLOTS = 64
"""Requests an engine holds at once: the most seats of stock, and Headway's worker slots for those that pause."""
BLOCK_TOKENS = 32
WARM_REQUESTS, WARM_SEED = 30, 97
_GOVERNOR = ("planned_steps", "distrusting_steps", "untimed_steps", "policy_faults")
"""The counters that say what a governor did."""


@dataclass(frozen=True, slots=True)
class Contender:
    """Who serves: vLLM's own scheduler, or a policy of Headway's with who predicts for it.

    `policy` is also what it is in the simulator. `steps`: how many times as long as they take the policy is told that
    steps take.
    """

    name: str
    policy: str
    stock: StockPolicy | None = None
    predictor: str | None = None
    steps: float = 1.0


STOCK = Contender("stock", "vllm", stock="fcfs")
CONTROL = Contender("stock again", "vllm", stock="fcfs")
"""Stock on another engine: how far it is from itself is how far differences mean nothing."""
PRIORITY = Contender("priority", "priority", stock="priority")


def taught(policy: str) -> Contender:
    """A policy with lengths predicted by the taught predictor."""
    return Contender(policy, policy, predictor=TAUGHT)


@dataclass(frozen=True, slots=True)
class Run:
    """One stream under one contender; `kind` of clients, empty where it makes no difference to who serves."""

    contender: Contender
    kind: str
    seats: int
    load: float
    seed: int

    def file(self, out: Path) -> Path:
        """Where what it came to is kept."""
        name = re.sub("[^a-z0-9.]+", "-", self.contender.name)
        return out / f"{name}-{self.kind or 'any'}-{self.seats}-{self.load:g}-{self.seed}.json"


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to: its requests in the order of the stream, Headway's counters, the governor's changes.

    `speed`: how many times as fast the machine was before it as when capacity was measured; all times are by that.
    """

    served: list[Served]
    speed: float = 1.0
    counters: dict[str, int] = {}
    changes: list[Change] = []


def kept(run: Run, out: Path) -> Kept:
    """What a run that was done came to."""
    return msgspec.json.decode(run.file(out).read_bytes(), type=Kept)


def governor_of(runs: Sequence[Kept]) -> dict[str, Any]:
    """What the governor said in several runs, and what the engine's own counters say of it."""
    return {
        **governor_figures(
            [run.changes for run in runs], [max(each.finished_s for each in run.served) for run in runs]
        ),
        "counters": {name: sum(run.counters.get(name, 0) for run in runs) for name in _GOVERNOR},
    }


def records(requests: Sequence[TraceRequest], served: Sequence[Served]) -> list[Record]:
    """What became of these requests, judged by the targets they have here."""
    return [_record(request, each) for request, each in zip(requests, served, strict=True)]


def _record(request: TraceRequest, served: Served) -> Record:
    return Record(
        id=request.id,
        arrival_s=served.arrival_s,
        prompt_tokens=request.input_tokens,
        outcome=Outcome.SHED if served.given_up else Outcome.FINISHED,
        output_tokens=served.output_tokens,
        tenant=request.tenant,
        first_token_s=served.first_token_s,
        finished_s=served.finished_s,
        slo=request.slo,
        error=served.given_up or None,
    )


@dataclass(frozen=True, slots=True)
class Memory:
    """KV memory of an engine: blocks on the device, 0 for as many as vLLM takes, and what it has on the host."""

    kv_blocks: int
    host_gib: float = 0.0

    def of(self, contender: Contender) -> Memory:
        """That of a contender's engine: stock has nothing on the host, so that nothing of Headway is left in it."""
        return self if contender.stock is None else replace(self, host_gib=0.0)

    def flags(self) -> tuple[str, ...]:
        """vLLM's flags; its count of blocks has its null block too. The rest is left to vLLM."""
        blocks = ("--num-gpu-blocks-override", str(self.kv_blocks + 1)) if self.kv_blocks else ()
        return ("--max-num-seqs", str(SLOTS), "--block-size", str(BLOCK_TOKENS), "--enforce-eager", *blocks)

    def settings(self) -> EngineSettings:
        """Headway's, to start an engine with."""
        return EngineSettings(host_kv=HostKv(gib=self.host_gib) if self.host_gib else None)

    @contextmanager
    def serving(self) -> Iterator[ServingEngine]:
        """A warm engine."""
        engine = ServingEngine(DEMO, self.flags(), self.settings())
        try:
            put_in(engine, taught("vllm"), SLOTS)
            burst = untaught_stream(WARM_REQUESTS, 1.0, WARM_SEED)
            engine.serve([replace(request, arrival_s=0.0) for request in burst], WARM_SEED, own_stops=True)
            yield engine
        finally:
            engine.close()


def put_in(engine: ServingEngine, contender: Contender, seats: int) -> None:
    """Let a contender schedule from now on."""
    if contender.stock is not None:
        engine.use_stock(contender.stock, seats)
    else:
        mistaken = None if contender.steps == 1 else wrong_by(contender.steps)
        engine.use(EngineSettings(policy=contender.policy, batch_width=seats), SLOTS, mistaken)


def serve(engine: ServingEngine, clock: EngineTime, *, run: Run, requests: Sequence[TraceRequest]) -> Kept:
    """Do a run; predictions are made beforehand, as the API server's process makes them beside the engine's."""
    lengths = GivenLengths(estimates_of(run.contender.predictor, requests, run.seed))
    put_in(engine, run.contender, run.seats)
    watch = GovernorWatch(engine.policy)
    gc.collect()
    served = engine.serve(
        requests, run.seed, lengths=lengths, own_stops=True, clock=clock, after_step=watch.look
    )
    return Kept(served=served, speed=clock.speed, counters=engine.counters, changes=watch.changes)


SEATS = (4, 8, 16, 32, 64)
SWEEP_LOAD, SWEEP_SEED = 1.0, 96
"""A stream that nothing is compared on: a run counts beside those alone that it served side by side with."""
CAPACITY_REQUESTS = 400
"""So many that what the last long answers take alone hardly counts, and few enough to serve before every stream."""
CAPACITY_SEED = 99
OWN = "policy"
"""How `--system` calls the policy of `--policy`."""
SYSTEMS = (STOCK.name, PRIORITY.name, OWN)

Grid = dict[tuple[str, float], dict[str, list[Run]]]
"""By kind of clients and load: every system's runs, one for each seed."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured before anything was compared, and for what kind of runs."""

    seconds: float
    memory: Memory
    capacity_rps: float
    capacity_seats: int
    light: Summary
    asynchronous: bool
    tokens_a_step: int
    num_blocks: int


@dataclass(frozen=True)
class Plan:
    """All that decides what is run; what was measured so far is in `out`."""

    out: Path
    seconds: float
    seeds: int
    loads: Sequence[float]
    kinds: Sequence[str]
    systems: Sequence[str]
    policy: str
    memory: Memory

    @property
    def preparation(self) -> Path:
        """Where what is measured beforehand is kept."""
        return self.out / "prepared.json"

    @cached_property
    def prepared(self) -> Prepared:
        """As it was kept. Raises ConfigError if it is of runs of another kind."""
        found = msgspec.json.decode(self.preparation.read_bytes(), type=Prepared)
        if (found.seconds, found.memory) != (self.seconds, self.memory):
            raise ConfigError(
                f"{self.out} holds runs of {found.seconds:g} s with --kv-blocks {found.memory.kv_blocks} --host-gib "
                f"{found.memory.host_gib:g}; accepted: the same, or another folder"
            )
        return found

    @cached_property
    def targets(self) -> Targets:
        """Of the clients of every run."""
        return targets_from(self.prepared.light)

    def stream(self, kind: str, load: float, seed: int) -> list[TraceRequest]:
        """The requests of a kind of clients: the same for every system, and but for who asks for every kind."""
        drawn = untaught_stream(load * self.prepared.capacity_rps, self.seconds, seed)
        return asked_by(drawn, kind, self.targets, seed)

    # ---- stock alone -----------------------------------------------------------------------------------

    def sweep(self) -> list[Run]:
        """Stock at every number of seats."""
        return [Run(STOCK, "", seats, SWEEP_LOAD, SWEEP_SEED) for seats in SEATS]

    @cached_property
    def swept(self) -> dict[str, dict[int, Summary]]:
        """What the sweep came to for each kind of clients, by seats."""
        served = {run.seats: kept(run, self.out).served for run in self.sweep()}
        return {
            kind: {
                seats: summarize(records(self.stream(kind, SWEEP_LOAD, SWEEP_SEED), each))
                for seats, each in served.items()
            }
            for kind in self.kinds
        }

    def best(self, kind: str) -> dict[str, int]:
        """Stock's best number of seats for each metric that clients of a kind have; the first is what counts most."""
        metrics = (MEAN_JCT,) if kind == NONE else METRICS
        return {metric: best_seats(self.swept[kind], metric) for metric in metrics}

    def width(self, kind: str) -> int:
        """The batch of all others: as stock's best for what counts most."""
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
        """The same for the contenders of `--broken`; who goes by neither targets nor predictions serves all kinds."""
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
    """Requests that are all there at once: what an engine gets through of them is its capacity."""
    drawn = untaught_stream(50.0, CAPACITY_REQUESTS / 50, CAPACITY_SEED)
    return [replace(request, arrival_s=0.0) for request in drawn]


def best_seats(swept: dict[int, Summary], metric: str) -> int:
    """The best of a sweep, none being the worst; of equals the one with the least mean JCT, then the fewest seats."""
    sign = -1 if metric == GOODPUT else 1

    def rank(seats: int) -> tuple[float, float, int]:
        summary = swept[seats]
        value = getattr(summary, metric)
        return (inf if value is None else sign * value, summary.mean_jct_s or inf, seats)

    return min(swept, key=rank)


def broken_contenders(policy: str) -> list[Contender]:
    """Who needs no predictions, and the policy with honest ones and with every kind of broken ones."""
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
    """What stock is called in a cell."""
    return f"{STOCK.name}, {seats} seats"


# ---- on the real engine ------------------------------------------------------------------------------

LIGHT_LOAD = 0.2
CAPACITY_SEATS = (16, 32, 64)
"""With the most of them memory is so short that some is computed twice; capacity is the best of these."""
LIGHT_SEED = 98


def prepare(plan: Plan) -> None:
    """Measure what comes before everything else, unless it is kept."""
    if plan.preparation.exists():
        say(f"going on at {plan.prepared.capacity_rps:.1f} requests a second of capacity")
        return
    with plan.memory.of(STOCK).serving() as engine:
        capacity_rps, capacity_seats = max(
            (_throughput_rps(engine, WallTime(), seats=seats), seats) for seats in CAPACITY_SEATS
        )
        say(f"capacity: {capacity_rps:.1f} requests a second, at {capacity_seats} seats")
        light = untaught_stream(LIGHT_LOAD * capacity_rps, plan.seconds, LIGHT_SEED)
        put_in(engine, STOCK, SLOTS)
        found = Prepared(
            seconds=plan.seconds,
            memory=plan.memory,
            capacity_rps=capacity_rps,
            capacity_seats=capacity_seats,
            light=summarize(records(light, engine.serve(light, LIGHT_SEED, own_stops=True))),
            asynchronous=engine.asynchronous,
            tokens_a_step=engine.tokens_a_step,
            num_blocks=engine.num_blocks,
        )
    write_whole(plan.preparation, msgspec.json.encode(found))


def _throughput_rps(engine: ServingEngine, clock: EngineTime, *, seats: int) -> float:
    """What stock gets through with so many seats."""
    put_in(engine, STOCK, seats)
    served = engine.serve(capacity_burst(), CAPACITY_SEED, own_stops=True, clock=clock)
    return len(served) / max(each.finished_s for each in served)


def measure(plan: Plan, runs: Sequence[Run]) -> None:
    """Do all runs that are not kept yet, those of one load and seed side by side."""
    todo = [run for run in dict.fromkeys(runs) if not run.file(plan.out).exists()]
    found = plan.prepared
    work = partial(_throughput_rps, seats=found.capacity_seats)
    gauge = Gauge(plan.memory.of(STOCK), work, found.capacity_rps)
    measure_side_by_side([[_lane(plan, run) for run in group] for group in side_by_side(todo)], say, gauge)


def side_by_side(runs: Iterable[Run]) -> list[list[Run]]:
    """The runs of each seed and load that serve together."""
    return compared(runs, by=lambda run: (run.seed, run.load))


def _lane(plan: Plan, run: Run) -> Lane[ServingEngine, Kept]:
    requests = plan.stream(run.kind or NONE, run.load, run.seed)

    def keep(found: Kept) -> None:
        write_whole(run.file(plan.out), msgspec.json.encode(found))
        mean_jct_s = summarize(records(requests, found.served)).mean_jct_s or 0.0
        say(
            f"seed {run.seed}: {run.contender.name} ({run.kind or 'all kinds'}, {run.seats} seats) at load "
            f"{run.load:g}: mean JCT {mean_jct_s:.3f} s of {len(requests)} requests"
        )

    return Lane(plan.memory.of(run.contender), partial(serve, run=run, requests=requests), keep)


# ---- simulated ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Faster:
    """Steps that are `speed` times as fast."""

    steps: StepSeconds
    speed: float

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of one step of this shape."""
        return self.steps.step_s(shape) / self.speed


@dataclass(frozen=True, slots=True)
class Engine:
    """This machine's engine on a virtual clock."""

    costs: Calibration
    memory: Memory
    num_blocks: int
    tokens_a_step: int
    asynchronous: bool

    def records(self, run: Run, requests: Sequence[TraceRequest]) -> list[Record]:
        """What becomes of the stream there, its answers as long as the tasks are packaged with."""
        found: list[Record] = []
        contender = run.contender
        simulate(
            requests,
            told_wrongly(policy_factory(contender.policy, OWN_PARTS, requests), contender.steps),
            System(limits=self._limits(contender, run.seats), calibration=self.costs),
            on_record=found.append,
            max_output_tokens=MAX_OUTPUT_TOKENS,
            seed=run.seed,
            lengths=GivenLengths(estimates_of(contender.predictor, requests, run.seed)),
        )
        return found

    def at_capacity(self, found: Prepared) -> Engine:
        """The same as fast as the machine was when capacity was measured, since loads and targets go by that.

        The machine may have had another speed when its costs were. Copies are left as they are.
        """
        speed = found.capacity_rps / self.capacity_rps(found.capacity_seats)
        costs = replace(
            self.costs,
            step=Faster(self.costs.step, speed),
            host_s=self.costs.host_s / speed,
            host_job_s=self.costs.host_job_s / speed,
            ungraphed_s=self.costs.ungraphed_s / speed,
        )
        return replace(self, costs=costs)

    def capacity_rps(self, seats: int) -> float:
        """What stock gets through here when all requests are there at once."""
        served = self.records(Run(STOCK, "", seats, 0.0, CAPACITY_SEED), capacity_burst())
        return len(served) / max(record.finished_s or 0.0 for record in served)

    def _limits(self, contender: Contender, seats: int) -> EngineLimits:
        """Stock has as many slots as seats."""
        stock = contender.stock is not None
        block_bytes = self.costs.kv_bytes_per_token * BLOCK_TOKENS
        return EngineLimits(
            num_blocks=self.num_blocks,
            block_size=BLOCK_TOKENS,
            max_num_seqs=seats if stock else SLOTS,
            batch_width=None if stock else seats,
            max_num_batched_tokens=self.tokens_a_step,
            max_cudagraph_capture_size=0,  # a CPU has none
            asynchronous=self.asynchronous,
            host_blocks=int(self.memory.of(contender).host_gib * (1 << 30) // block_bytes),
        )
