"""What `bench/gpu_real.py` runs, and where what was measured is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from bench.gpu_engine import GpuRun, StepTime
from bench.headway_real_engine import STOCK, Contender, Run
from bench.regret_contenders import contender
from bench.regret_machines import Machine
from bench.regret_targets import NONE, with_classes
from bench.regret_workloads import Served
from headway.errors import ConfigError
from headway.traces import TraceRequest

FACTS = "facts.json"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured before any run, and of which engine."""

    measured_on: str
    vllm: str
    workload: str
    seconds: float
    capacity_rps: float
    num_blocks: int
    worker_slots: int
    tokens_a_step: int
    asynchronous: bool
    steps: list[StepTime]


@dataclass(frozen=True)
class Study:
    """What is asked for, and where it is kept."""

    out: Path
    machine: Machine
    workload: Served
    policy: str
    seconds: float
    seeds: int
    loads: Sequence[float]
    kinds: Sequence[str]
    seats: Sequence[int]
    vllm_flags: Sequence[str] = ()

    @cached_property
    def facts(self) -> Facts:
        """What was measured first. Raises ConfigError if it is of other streams."""
        found = msgspec.json.decode((self.out / FACTS).read_bytes(), type=Facts)
        if (found.workload, found.seconds) != (self.workload.name, self.seconds):
            raise ConfigError(
                f"{self.out} holds runs of {found.seconds:g} s of {found.workload}; accepted: the same, or another "
                "folder"
            )
        return found

    def runs(self) -> Iterator[Run]:
        """All of them, load by load."""
        slots, own = self.facts.worker_slots, contender(self.policy)
        ours = Contender(own.name, own.preset, predictor=own.predictor)
        for seed in range(1, self.seeds + 1):
            for load in self.loads:
                yield Run(STOCK, NONE, slots, load, seed)
                for kind in self.kinds:
                    yield Run(ours, kind, slots, load, seed)
                for seats in self.seats:
                    yield Run(STOCK, NONE, seats, load, seed)

    def stream(self, load: float, seed: int, kind: str) -> list[TraceRequest]:
        """The requests of a run, with the targets of a class."""
        rate_rps = load * self.facts.capacity_rps
        requests = self.workload.window(rate_rps, self.seconds, seed)
        return with_classes(requests, self.workload, kind, seed)

    def kept(self, run: Run) -> GpuRun:
        """What a run that was done came to."""
        return msgspec.json.decode(run.file(self.out).read_bytes(), type=GpuRun)
