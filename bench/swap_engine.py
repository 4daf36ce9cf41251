"""The real engine as `bench/swap.py` needs it: every step noted, copies held to a bandwidth, costs measured."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from bench.engine_time import EngineTime
from headway.core.batch_shape import BatchShape
from headway.core.plan import Fate, StepOutcome
from headway.core.record import Record
from headway.engine.kv.orders import CopyOrder
from headway.engine.settings import EngineSettings
from headway.engine.vllm.stepped_engine import Hints, SteppedEngine, SteppedStep
from headway.lab.real_engine import prompt_ids
from headway.traces import TraceRequest

COPIES_TIMED = 7
"""Of each size; their median counts."""
PREFILLS_TIMED = 5
"""Of each length; their median counts."""
CACHES_BYTES = 2**27
"""More than a processor's caches hold."""


@dataclass(frozen=True, slots=True)
class WatchedStep:
    """A step with work; `copying` says that KV was being copied at some time of it."""

    shape: BatchShape
    seconds: float
    copying: bool


@dataclass(slots=True)
class Watch:
    """What happened since it was begun. `idle_s` is the time of steps without work while copies were under way."""

    steps: list[WatchedStep] = field(default_factory=list)
    idle_s: float = 0.0
    fates: Counter[Fate] = field(default_factory=Counter)
    records: list[Record] = field(default_factory=list)


class WatchedEngine(SteppedEngine):
    """Notes steps, preemptions and records in `watch`, which may be put in anew between two runs."""

    def __init__(self, model: str, vllm_flags: Sequence[str], settings: EngineSettings) -> None:
        self.watch = Watch()
        super().__init__(model, vllm_flags, settings)

    def schedule_with(self, settings: EngineSettings) -> None:
        """As before, and listen to the new scheduler."""
        super().schedule_with(settings)
        self.hear_records(lambda record: self.watch.records.append(record))
        ledger = self.scheduler.ledger
        apply = ledger.apply

        def applied(outcome: StepOutcome) -> None:
            self.watch.fates.update(outcome.preempted.values())
            apply(outcome)

        ledger.apply = applied

    def step(self) -> SteppedStep | None:
        """One turn of the loop, noted."""
        copies, counters = self.scheduler.swaps.copies, self.scheduler.counters
        copied, copying = _blocks_copied(counters), copies.busy
        started = time.perf_counter()
        step = super().step()
        seconds = time.perf_counter() - started
        copying = copying or copies.busy or _blocks_copied(counters) > copied
        if step is not None:
            self.watch.steps.append(WatchedStep(step.shape, step.seconds, copying))
        elif copying:
            self.watch.idle_s += seconds
        return step

    def serve(self, requests: Sequence[TraceRequest], seed: int, clock: EngineTime) -> float:
        """Serve requests that are all there at once; seconds by a clock that has begun until the last has ended."""
        made = []
        for request in requests:
            hints: Hints = {"headway_max_output_tokens": request.max_output_tokens}
            prompt = prompt_ids(request, seed)
            made.append(self.make_request(self.fresh_id(), prompt, request.output_tokens, hints))
        self.scheduler.clock = clock.now_s
        arrived_s = time.time()
        started_s = clock.now_s()
        for request in made:
            request.arrival_time = arrived_s
            self.add(request)
        while self.busy:
            self.step()
            clock.stepped()
        return clock.now_s() - started_s

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds of a step that computes one such prompt alone; the engine must be idle."""
        times = []
        for _ in range(PREFILLS_TIMED):
            self.add(self.make_request(self.fresh_id(), [10] * num_tokens, 1))
            while self.busy:
                step = self.step()
                if step is not None:
                    times.append(step.seconds)
        return median(times)

    def limit_copies(self, bytes_per_s: float | None) -> None:
        """Hold each direction to a bandwidth from now on; None: to none. The engine must be idle."""
        self.on_workers(limit_on_worker, bytes_per_s)


def _blocks_copied(counters: Any) -> int:
    copied: int = counters.swapped_out_blocks + counters.swapped_in_blocks
    return copied


# ---- run on the worker ---------------------------------------------------------------------------------


def _copier() -> Any:
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return get_kv_transfer_group().worker.copier


def limit_on_worker(worker: Any, bytes_per_s: float | None) -> None:
    """Set the bandwidth of this worker's copies."""
    _copier().bytes_per_s = bytes_per_s


class CopySeconds(NamedTuple):
    """Medians of one size of copy, on an idle engine, without a limit, none of it in the caches before."""

    plain: float
    """One `memcpy` of as many bytes."""
    to_host: float
    to_device: float


def copies_on_worker(worker: Any, sizes_blocks: Sequence[int], block_bytes: int) -> list[CopySeconds]:
    """Seconds of copies of so many blocks, the largest of them spread over half of the pool."""
    import torch

    copier = _copier()
    assert copier.bytes_per_s is None
    elsewhere = torch.zeros(CACHES_BYTES, dtype=torch.uint8)
    found = []
    for blocks in sizes_blocks:
        source, target = (torch.zeros(blocks * block_bytes, dtype=torch.uint8) for _ in range(2))
        # Block 0 is vLLM's null block. What is copied out is copied back, so that blocks keep what they hold.
        device_blocks = tuple(range(1, 2 * blocks, 2))
        order = CopyOrder(0, device_blocks, tuple(range(blocks)))
        times: tuple[list[float], list[float], list[float]] = ([], [], [])
        for _ in range(COPIES_TIMED):
            elsewhere.add_(1)
            started = time.perf_counter()
            target.copy_(source)
            times[0].append(time.perf_counter() - started)
            elsewhere.add_(1)
            times[1].append(copier.save(order).wait())
            elsewhere.add_(1)
            times[2].append(copier.restore(order).wait())
        found.append(CopySeconds(*map(median, times)))
    return found
