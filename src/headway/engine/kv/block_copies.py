"""Measures copies of KV blocks between device and host, on the worker that holds the blocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from headway.errors import ConfigError

OnWorkers = Callable[..., list[Any]]

MAX_BLOCKS = 256
REPETITIONS = 7
"""Copies of each size; their median counts."""
_CACHES_BYTES = 2**27
"""More than a processor's caches hold."""
_TIMES_A_COPY = 512
"""A copy is evicted from the caches by touching this many times its bytes, so a copy of few bytes does not wait for
a full flush. A KV block has 10^5 bytes and more.
"""


class CopyDirection(StrEnum):
    """Direction of a copy."""

    TO_HOST = "to_host"
    TO_DEVICE = "to_device"


@dataclass(frozen=True, slots=True)
class TimedCopy:
    """One measured copy: bytes of all workers together, seconds of the slowest worker."""

    direction: CopyDirection
    num_bytes: int
    seconds: float


def measure_copies(on_workers: OnWorkers, num_blocks: int) -> list[TimedCopy]:
    """Measure copies of 1, 2, 4, ... blocks of an idle engine in both directions; takes a few seconds.

    `on_workers` runs a function on each worker. The blocks get their contents back. Raises ConfigError if the engine
    keeps no KV in blocks.
    """
    answers = on_workers(copies_on_worker, num_blocks)
    by_size: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for answer in answers:
        for direction, num_blocks, num_bytes, seconds in answer:
            by_size.setdefault((direction, num_blocks), []).append((num_bytes, seconds))
    if not by_size:
        raise ConfigError(
            "the engine keeps no KV cache in blocks; only models with full attention can be profiled"
        )
    return [
        TimedCopy(
            CopyDirection(direction), sum(size for size, _ in found), max(seconds for _, seconds in found)
        )
        for (direction, _), found in sorted(by_size.items())
    ]


def copies_on_worker(worker: Any, num_blocks: int) -> list[tuple[str, int, int, float]]:
    """Runs on a worker: (direction, blocks, bytes, median seconds) for each size."""
    layers = list(_layers(worker.model_runner.kv_caches, num_blocks))
    if not layers:
        return []
    return [
        (str(direction), count, num_bytes, seconds)
        for count in _counts(num_blocks)
        for direction, num_bytes, seconds in _time_both_ways(layers, count, num_blocks)
    ]


def _counts(num_blocks: int) -> list[int]:
    return [count for power in range(9) if (count := 2**power) <= min(MAX_BLOCKS, num_blocks)]


def _layers(caches: Sequence[Any], num_blocks: int) -> Iterator[tuple[Any, int]]:
    """Yield each layer's tensor and the dimension that counts blocks; layouts differ by platform."""
    import torch

    for cache in caches:
        if isinstance(cache, torch.Tensor):
            sized = [dim for dim, size in enumerate(cache.shape) if size > num_blocks]
            if sized:
                yield cache, sized[0]


def _time_both_ways(
    layers: Sequence[tuple[Any, int]], count: int, num_blocks: int
) -> Iterator[tuple[CopyDirection, int, float]]:
    """Yield the median seconds of copying `count` blocks, spread over the pool, to the host and back."""
    import torch

    on_device = layers[0][0].device
    # Block 0 is vLLM's null block.
    blocks = torch.linspace(1, num_blocks, count).to(torch.int64).to(on_device)
    pinned = on_device.type == "cuda"
    staged = [cache.index_select(dim, blocks) for cache, dim in layers]
    # Device and host share one memory here, so a copy is a single move: gathering the blocks, or scattering them.
    host = (
        [torch.empty(part.shape, dtype=part.dtype, pin_memory=True) for part in staged] if pinned else staged
    )

    def save() -> None:
        for (cache, dim), gathered, part in zip(layers, staged, host, strict=True):
            torch.index_select(cache, dim, blocks, out=gathered)
            if pinned:
                part.copy_(gathered, non_blocking=True)

    def restore() -> None:
        for (cache, dim), gathered, part in zip(layers, staged, host, strict=True):
            if pinned:
                gathered.copy_(part, non_blocking=True)
            cache.index_copy_(dim, blocks, gathered)

    num_bytes = sum(part.nbytes for part in host)
    elsewhere = torch.zeros(min(_CACHES_BYTES, _TIMES_A_COPY * num_bytes), dtype=torch.uint8)
    clock = _cuda_seconds if pinned else partial(_host_seconds, elsewhere)
    for direction, copy in ((CopyDirection.TO_HOST, save), (CopyDirection.TO_DEVICE, restore)):
        copy()  # the first copy pays for allocations
        times = sorted(clock(copy) for _ in range(REPETITIONS))
        yield direction, num_bytes, times[len(times) // 2]


def _host_seconds(elsewhere: Any, copy: Callable[[], None]) -> float:
    """Seconds of a copy with cold caches, since a step reads the weights before a swap begins."""
    elsewhere.add_(1)
    started = time.perf_counter()
    copy()
    return time.perf_counter() - started


def _cuda_seconds(copy: Callable[[], None]) -> float:
    """Seconds by the device's clock; the host only waits."""
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    copy()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
