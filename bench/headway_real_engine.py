"""Who serves in `headway_real`, on which engine, and what a run of a stream leaves behind."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from bench.broken_ways import governor_figures
from bench.engine_time import EngineTime
from bench.governor_watch import Change, GovernorWatch
from bench.serving_engine import Served, ServingEngine, StockPolicy
from bench.taught_lengths import TAUGHT, estimates_of, untaught_stream
from bench.wrong_cost import wrong_by
from headway.core.record import Outcome, Record
from headway.engine.demo_model import DEMO
from headway.engine.kv.host import HostKv
from headway.engine.settings import EngineSettings
from headway.planner.foretold import Foretold
from headway.traces import TraceRequest

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
    lengths = Foretold(estimates_of(run.contender.predictor, requests, run.seed))
    put_in(engine, run.contender, run.seats)
    watch = GovernorWatch(engine.policy)
    gc.collect()
    served = engine.serve(
        requests, run.seed, lengths=lengths, own_stops=True, clock=clock, after_step=watch.look
    )
    return Kept(served=served, speed=clock.speed, counters=engine.counters, changes=watch.changes)
