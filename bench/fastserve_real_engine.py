"""Who serves in `fastserve_real`, on which engine, and what is kept of a run."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean

import msgspec
from headway_reproduce.mid_model import ensure_mid_model

from bench.engine_time import EngineTime
from bench.progress import say
from bench.serving_engine import Served, ServingEngine
from bench.side_by_side import Lane, compared, measure_side_by_side
from headway.engine.kv.host import HostKv
from headway.engine.settings import EngineSettings
from headway.errors import ConfigError
from headway.traces import Gamma, TraceRequest, Zipf, generate
from headway.whole_file import write_whole

DEFAULT_SEATS = 256
"""vLLM's default on a CPU, and the worker slots that Headway's paused requests have."""
BURSTINESS_CV = 4.0
LENGTHS = Zipf(1.1, 512)
MAX_OUTPUT_TOKENS = 512
BLOCK_TOKENS, TOKENS_A_STEP = 32, 2048
CAPACITY_REQUESTS, CAPACITY_SEED = 500, 99
"""So many that what the last long answers take alone hardly counts."""
WARM_REQUESTS, WARM_SEED = 25, 98
STOCK, FASTSERVE = "stock", "fastserve"
SYSTEMS = {STOCK: "vllm", FASTSERVE: "fastserve"}
"""System -> the policy that is it in the simulator."""


@dataclass(frozen=True, slots=True)
class Setting:
    """An engine's KV memory: blocks on the device, and Headway's on the host to swap to."""

    name: str
    kv_blocks: int
    host_gib: float = 0.0

    def of(self, system: str) -> Setting:
        """That of a system's engine: stock has nothing on the host, so that nothing of Headway is left in it."""
        return replace(self, host_gib=0.0) if system == STOCK else self

    def flags(self) -> tuple[str, ...]:
        """vLLM's flags; its count of blocks has its null block too."""
        return (
            *("--max-num-seqs", str(DEFAULT_SEATS), "--max-num-batched-tokens", str(TOKENS_A_STEP)),
            *("--max-model-len", "2048", "--block-size", str(BLOCK_TOKENS), "--enforce-eager"),
            *("--num-gpu-blocks-override", str(self.kv_blocks + 1)),
        )

    def settings(self) -> EngineSettings:
        """Headway's, to start an engine with."""
        return EngineSettings(host_kv=HostKv(gib=self.host_gib) if self.host_gib else None)

    @contextmanager
    def serving(self) -> Iterator[ServingEngine]:
        """A warm engine."""
        engine = ServingEngine(str(ensure_mid_model()), self.flags(), self.settings())
        try:
            engine.serve(stream(WARM_REQUESTS, WARM_REQUESTS, WARM_SEED), WARM_SEED)
            yield engine
        finally:
            engine.close()


AMPLE, SHORT = Setting("ample", kv_blocks=2048), Setting("short", kv_blocks=128, host_gib=1.0)
"""KV for all who run at once, and for some thirty of them."""
SETTINGS = {setting.name: setting for setting in (AMPLE, SHORT)}


@dataclass(frozen=True, slots=True)
class Run:
    """One stream on one system."""

    setting: Setting
    system: str
    seats: int
    load: float
    seed: int

    def file(self, out: Path) -> Path:
        """Where what it came to is kept."""
        return out / f"{self.setting.name}-{self.system}-{self.seats}-{self.load:g}-{self.seed}.json"


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured before anything was compared, and how long the streams are."""

    seconds: float
    capacity_rps: float
    asynchronous: bool


def stream(rate_rps: float, count: int, seed: int) -> list[TraceRequest]:
    """So many requests, each declaring the limit of its answer."""
    requests = generate(Gamma(rate_rps, BURSTINESS_CV), LENGTHS, LENGTHS, count, seed)
    return [replace(request, max_output_tokens=MAX_OUTPUT_TOKENS) for request in requests]


def put_in(engine: ServingEngine, run: Run) -> None:
    """Let a run's system schedule from now on."""
    if run.system == STOCK:
        engine.use_stock("fcfs", run.seats)
    else:
        own = replace(run.setting.settings(), policy=SYSTEMS[FASTSERVE], batch_width=run.seats)
        engine.use(own, DEFAULT_SEATS)


def serve(
    engine: ServingEngine, clock: EngineTime, *, run: Run, requests: Sequence[TraceRequest]
) -> list[Served]:
    """Do a run."""
    put_in(engine, run)
    gc.collect()
    return engine.serve(requests, run.seed, clock=clock)


@dataclass(frozen=True)
class Measured:
    """What has been measured so far in a setting, all of it in `out`, with streams of about so many seconds."""

    out: Path
    setting: Setting
    seconds: float

    @cached_property
    def prepared(self) -> Prepared:
        """Capacity, measured now unless it is kept. Raises ConfigError if that was for streams of another length."""
        file = self.out / f"{self.setting.name}-prepared.json"
        if not file.exists():
            write_whole(file, msgspec.json.encode(self._prepare()))
        found = msgspec.json.decode(file.read_bytes(), type=Prepared)
        if found.seconds != self.seconds:
            raise ConfigError(
                f"{self.out} holds streams of {found.seconds:g} s; accepted: the same --seconds, or another folder"
            )
        return found

    def _prepare(self) -> Prepared:
        """What stock gets through at its default seats, all requests there at once."""
        burst = [replace(each, arrival_s=0.0) for each in stream(1.0, CAPACITY_REQUESTS, CAPACITY_SEED)]
        with self.setting.of(STOCK).serving() as engine:
            engine.use_stock("fcfs", DEFAULT_SEATS)
            served = engine.serve(burst, CAPACITY_SEED)
            capacity_rps = len(served) / max(each.finished_s for each in served)
            say(f"{self.setting.name}: capacity {capacity_rps:.2f} requests a second")
            return Prepared(seconds=self.seconds, capacity_rps=capacity_rps, asynchronous=engine.asynchronous)

    def requests(self, run: Run) -> list[TraceRequest]:
        """The stream of a run: the same for every system and number of seats."""
        rate_rps = run.load * self.prepared.capacity_rps
        return stream(rate_rps, max(8, round(rate_rps * self.seconds)), run.seed)

    def do(self, runs: Sequence[Run]) -> None:
        """Serve those that are not kept yet, those of one load and seed side by side."""
        todo = [run for run in dict.fromkeys(runs) if not run.file(self.out).exists()]
        groups = compared(todo, by=lambda run: (run.seed, run.load))
        measure_side_by_side([[self._lane(run) for run in group] for group in groups], say)

    def _lane(self, run: Run) -> Lane[ServingEngine, list[Served]]:
        def keep(served: list[Served]) -> None:
            write_whole(run.file(self.out), msgspec.json.encode(served))
            say(
                f"{run.setting.name}, seed {run.seed}: {run.system} ({run.seats} seats) at load {run.load:g}: "
                f"mean JCT {fmean(each.jct_s for each in served):.2f} s of {len(served)} requests"
            )

        work = partial(serve, run=run, requests=self.requests(run))
        return Lane(run.setting.of(run.system), work, keep)

    def served(self, run: Run) -> list[Served]:
        """What a run came to."""
        return msgspec.json.decode(run.file(self.out).read_bytes(), type=list[Served])

    def mean_jct_s(self, run: Run) -> float:
        """Of all its requests."""
        return fmean(each.jct_s for each in self.served(run))
