"""Runs on a live engine: contenders, the serving engine, the stored results, and the same run simulated."""

from __future__ import annotations

import gc
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from headway_reproduce.mid_model import ensure_mid_model

from bench.command import say
from bench.governor import Change, GovernorWatch, told_wrongly, wrong_by
from bench.side_by_side import Gauge, Lane, compared, measure_side_by_side
from bench.streams import estimates_of
from headway.core.record import Outcome, Record
from headway.engine.host_kv import HostKv
from headway.engine.machine import machine_name, vllm_version
from headway.engine.profiling.profile import Identity, Measurements, Profiler, conclude
from headway.engine.settings import EngineSettings
from headway.engine.step.guard import GuardedPolicy
from headway.engine.stepped_engine import SteppedEngine, StockPolicy
from headway.lab.policy_choice import OWN_PARTS, Parts, policy_factory
from headway.lab.real_engine import EngineClock, ServedRequest, serve, served_rps
from headway.lab.simulation import simulate_policy
from headway.policies.presets import build_policy
from headway.predict.steps.calibration import Calibration, load_cost_file, write_cost_file
from headway.sim.lengths import GivenLengths
from headway.sim.limits import EngineLimits
from headway.sim.simulation import System
from headway.statistics import mean
from headway.traces import TraceRequest, at_once
from headway.whole_file import write_whole

# ---- contenders --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Contender:
    """What serves: vLLM's own scheduler, or one of Headway's policies with its predictor of lengths.

    `policy`, with `parts` in place of its own, is also used in the simulator. `steps` is the factor by which the step
    times that the policy is told are too long.
    """

    name: str
    policy: str
    stock: StockPolicy | None = None
    predictor: str | None = None
    steps: float = 1.0
    parts: Parts = OWN_PARTS

    def put_in(self, engine: SteppedEngine, seats: int | None) -> None:
        """Let the contender schedule an idle engine from now on, with this many requests a step; None: as many as
        there are slots.
        """
        if self.stock is not None:
            engine.schedule_with_stock(self.stock, seats)
            return
        settings = EngineSettings(policy=self.policy, batch_width=seats, **self.parts.given())
        engine.schedule_with(settings)
        if self.steps != 1:  # the engine goes on learning the truth
            scheduler = engine.scheduler
            policy = build_policy(settings.preset(), wrong_by(self.steps)(scheduler.cost))
            scheduler.guard = GuardedPolicy(policy, scheduler.ledger, scheduler.counters)


STOCK = Contender("stock", "vllm", stock="fcfs")
CONTROL = Contender("stock again", "vllm", stock="fcfs")
"""Stock on another engine. Its difference from stock is noise, so smaller differences mean nothing."""
PRIORITY = Contender("priority", "priority", stock="priority")


# ---- runs, and what is kept of them --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """One stream under one contender; `kind` of clients, empty where it makes no difference to the server."""

    contender: Contender
    kind: str
    seats: int
    load: float
    seed: int

    def file(self, out: Path) -> Path:
        """The file of its result."""
        name = re.sub("[^a-z0-9.]+", "-", self.contender.name)
        return out / f"{name}-{self.kind or 'any'}-{self.seats}-{self.load:g}-{self.seed}.json"


class KeptRun(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run: its requests in the order of the stream, Headway's counters, the governor's changes.

    `speed`: the machine's speed before the run relative to its speed when capacity was measured; all times are
    corrected by it. `schedule_s` are the seconds of each `schedule`, where they were measured.
    """

    served: list[ServedRequest]
    speed: float = 1.0
    counters: dict[str, int] = {}
    changes: list[Change] = []
    schedule_s: list[float] = []

    @property
    def jcts_s(self) -> list[float]:
        """Each request's completion time."""
        return [each.jct_s for each in self.served]


class CapacityFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured before the comparison."""

    capacity_rps: float
    asynchronous: bool


def kept(run: Run, out: Path) -> KeptRun:
    """The stored result of a run."""
    return msgspec.json.decode(run.file(out).read_bytes(), type=KeptRun)


def do_run(
    engine: SteppedEngine,
    clock: EngineClock,
    *,
    run: Run,
    requests: Sequence[TraceRequest],
    own_stops: bool = True,
) -> KeptRun:
    """Do a run; predictions are made beforehand, as the API server's process makes them beside the engine's."""
    lengths = GivenLengths(estimates_of(run.contender.predictor, requests, run.seed))
    run.contender.put_in(engine, run.seats)
    watch = GovernorWatch(engine.policy)
    gc.collect()
    served = serve(
        engine,
        requests,
        run.seed,
        lengths=lengths,
        own_stops=own_stops,
        clock=clock,
        after_step=watch.look,
    )
    return KeptRun(served=served, speed=clock.speed, counters=engine.counters, changes=watch.changes)


def records(requests: Sequence[TraceRequest], served: Sequence[ServedRequest]) -> list[Record]:
    """The records of these requests, judged by the targets that they have here."""
    return [_record(request, each) for request, each in zip(requests, served, strict=True)]


def _record(request: TraceRequest, served: ServedRequest) -> Record:
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


def capacity_rps(
    engine: SteppedEngine,
    clock: EngineClock,
    *,
    burst: Sequence[TraceRequest],
    seats: int | None,
    seed: int,
    own_stops: bool = True,
) -> float:
    """Requests a second of stock with this many seats when all requests of `burst` are queued."""
    STOCK.put_in(engine, seats)
    return served_rps(serve(engine, burst, seed, own_stops=own_stops, clock=clock))


# ---- the engine ----------------------------------------------------------------------------------------

MID = "mid"
"""The name of the made model of 46 million parameters."""


def no_requests() -> Sequence[TraceRequest]:
    """No requests, for an engine that serves nothing before its first run."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """The serving engine: `kv_blocks` on the device, and `host_gib` on the host.

    0 for slots or blocks leaves them to vLLM. `flags` are further flags of vLLM. `warm` gives the requests that the
    engine serves before it counts as started.
    """

    model: str
    flags: tuple[str, ...]
    block_tokens: int
    slots: int = 0
    kv_blocks: int = 0
    host_gib: float = 0.0
    warm: Callable[[], Sequence[TraceRequest]] = no_requests

    def of(self, contender: Contender) -> EngineSpec:
        """The contender's engine: stock gets no host memory, so that nothing of Headway is left in it."""
        return self if contender.stock is None else replace(self, host_gib=0.0)

    @property
    def model_folder(self) -> str:
        """The model folder that vLLM is started with."""
        return str(ensure_mid_model()) if self.model == MID else self.model

    def vllm_flags(self) -> tuple[str, ...]:
        """All of vLLM's flags; vLLM's number of blocks includes its null block."""
        blocks = ("--num-gpu-blocks-override", str(self.kv_blocks + 1)) if self.kv_blocks else ()
        slots = ("--max-num-seqs", str(self.slots)) if self.slots else ()
        return (*self.flags, "--block-size", str(self.block_tokens), *slots, *blocks)

    def settings(self) -> EngineSettings:
        """Headway's settings for the engine."""
        return EngineSettings(host_kv=HostKv(gib=self.host_gib) if self.host_gib else None)

    @contextmanager
    def serving(self) -> Iterator[SteppedEngine]:
        """A warm engine, scheduled as vLLM chooses."""
        engine = SteppedEngine(self.model_folder, self.vllm_flags(), self.settings(), as_served=True)
        try:
            warm = at_once(self.warm())
            serve(engine, warm, seed=97, own_stops=any(request.prompt for request in warm))
            yield engine
        finally:
            engine.close()


def side_by_side(runs: Iterable[Run]) -> list[list[Run]]:
    """Groups of runs that serve together: those of each seed and load."""
    return compared(runs, by=lambda run: (run.seed, run.load))


def keep_runs(
    out: Path,
    spec: EngineSpec,
    runs: Iterable[Run],
    requests_of: Callable[[Run], Sequence[TraceRequest]],
    *,
    own_stops: bool = True,
    gauge: Gauge[SteppedEngine] | None = None,
) -> None:
    """Do the runs that are not kept yet, those of one seed and load side by side, and keep each in a file."""

    def lane(run: Run) -> Lane[SteppedEngine, KeptRun]:
        def keep(found: KeptRun) -> None:
            write_whole(run.file(out), msgspec.json.encode(found))
            say(f"{run.file(out).stem}: mean JCT {mean(found.jcts_s):.3f} s of {len(found.served)} requests")

        work = partial(do_run, run=run, requests=requests_of(run), own_stops=own_stops)
        return Lane(spec.of(run.contender), work, keep)

    todo = [run for run in dict.fromkeys(runs) if not run.file(out).exists()]
    measure_side_by_side([[lane(run) for run in group] for group in side_by_side(todo)], say, gauge)


_Engine = TypeVar("_Engine", bound=SteppedEngine)


def kept_apart(start: Callable[[], _Engine]) -> _Engine:
    """An engine whose worker has the first cores and whose loop has the last, so that they do not trade places."""
    cores = sorted(os.sched_getaffinity(0))
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if len(cores) > 1:
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores[:-1])))
    engine = start()
    os.sched_setaffinity(0, cores[-1:])
    return engine


# ---- the same on a virtual clock -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TwinEngine:
    """An engine of a spec with measured costs."""

    spec: EngineSpec
    costs: Calibration
    num_blocks: int
    tokens_a_step: int
    asynchronous: bool

    def records(self, run: Run, requests: Sequence[TraceRequest], *, max_output_tokens: int) -> list[Record]:
        """Records of the simulated stream, with answers as long as the trace says."""
        contender = run.contender
        return simulate_policy(
            requests,
            told_wrongly(policy_factory(contender.policy, contender.parts, requests), contender.steps),
            System(limits=self._limits(contender, run.seats), calibration=self.costs),
            max_output_tokens=max_output_tokens,
            seed=run.seed,
            lengths=GivenLengths(estimates_of(contender.predictor, requests, run.seed)),
        ).records

    def _limits(self, contender: Contender, seats: int) -> EngineLimits:
        """The engine's limits; stock has as many slots as seats."""
        stock = contender.stock is not None
        block_bytes = self.costs.kv_bytes_per_token * self.spec.block_tokens
        return EngineLimits(
            num_blocks=self.num_blocks,
            block_size=self.spec.block_tokens,
            max_num_seqs=seats if stock else self.spec.slots,
            batch_width=None if stock else seats,
            max_num_batched_tokens=self.tokens_a_step,
            max_cudagraph_capture_size=0,  # a CPU has none
            asynchronous=self.asynchronous,
            host_blocks=int(self.spec.of(contender).host_gib * (1 << 30) // block_bytes),
        )


def profiled(file: Path, spec: EngineSpec, seconds: float) -> Calibration:
    """The costs of an engine, kept in `file`; unless the file exists they are measured for about this many seconds."""
    if not file.exists():
        say("profiling")
        engine = SteppedEngine(spec.model_folder, spec.vllm_flags(), spec.settings())
        try:
            measured = Measurements(engine.sizes)
            profiler = Profiler(engine, measured, seconds=seconds)
            profiler.prepare(lambda share, what: None)
            profile_for(engine, profiler, seconds)
            conclude_profile(measured, spec.model, file)
        finally:
            engine.close()
    return load_cost_file(file).calibration()


def profile_for(engine: SteppedEngine, profiler: Profiler, seconds: float) -> None:
    """Continue the profile for about this many seconds."""
    engine.schedule_with(EngineSettings())
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        profiler.play_next()


def conclude_profile(measured: Measurements, model: str, file: Path) -> None:
    """Write what was measured as a cost file. Raises ConfigError if it is too little."""
    identity = Identity(
        machine=machine_name(), model=model, vllm_version=vllm_version(), measured_on=date.today().isoformat()
    )
    result = conclude(measured, identity)
    write_cost_file(file, result.cost)
    say(msgspec.json.encode(result.to_dict()).decode())
