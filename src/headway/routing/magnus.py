"""The table of central queues: Magnus, its baselines, and its ablations."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from headway.errors import ConfigError, meant
from headway.routing.batch_queue import (
    MEMORY_CONFIDENCE,
    BatchQueue,
    BatchTime,
    Choosing,
    FirstCome,
    FixedSize,
    HighestRatio,
    Joining,
    LeastWaste,
    PlannedLength,
)

VS_BATCH_SIZE = 7
"""Members of a batch that fit a V100's memory if all had the longest prompt and answer (Magnus, Fig. 4)."""
VSQ_BATCH_SIZE = 10
"""With four-bit weights more fit."""
WMA_LIMIT, WMA_SHARE = 2_000, 0.5
"""Phi, which the paper does not state: a batch may waste this many tokens, or half of what a seat of it reads.
Waste grows with the square of lengths, so a fixed number that suits short answers lets long ones share no batch
(adr/0019). The same in serving and studies.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPreset:
    """One row: how batches are gathered and chosen, and its purpose.

    `batch_size` is the size, or with `by_waste` the maximum; None: as many as memory is planned for. `simulated`: its
    engine exists only in the simulator.
    """

    name: str
    summary: str
    batch_size: int | None = None
    by_waste: bool = False
    by_ratio: bool = False
    simulated: bool = False


_ROWS = (
    BatchPreset(
        name="vs",
        batch_size=VS_BATCH_SIZE,
        summary="vanilla: batches of fixed size, first come, first served",
    ),
    BatchPreset(
        name="vsq",
        batch_size=VSQ_BATCH_SIZE,
        summary="vs with four-bit weights: larger batches on a slower engine (simulated)",
        simulated=True,
    ),
    BatchPreset(
        name="glp",
        batch_size=VS_BATCH_SIZE,
        by_waste=True,
        summary="ablation: requests of like predicted length share a batch, of vs's size at most",
    ),
    BatchPreset(name="abp", by_waste=True, summary="ablation: glp with batches as large as memory allows"),
    BatchPreset(
        name="magnus",
        by_waste=True,
        by_ratio=True,
        summary="abp, and the batch that has waited longest for its length goes first",
    ),
)

BATCH_PRESETS: dict[str, BatchPreset] = {row.name: row for row in _ROWS}
"""The central queues that a flag can name. Source: Magnus (Cheng et al. 2024), section on baselines and ablation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """The settings of a central queue.

    `capacity_tokens` is the KV memory of one instance, allocated in blocks of `block_tokens`; None: ask the instances.
    `batch_size` replaces the row's own. Lengths are planned with what answers stay within at `confidence`, memory at
    `memory_confidence`, times `safety_factor`. Raises ConfigError for a value out of range.
    """

    capacity_tokens: int | None = None
    block_tokens: int = 1
    batch_size: int | None = None
    wma_limit: int = WMA_LIMIT
    wma_share: float = WMA_SHARE
    inclusive: bool = False
    confidence: float = 0.5
    memory_confidence: float = MEMORY_CONFIDENCE
    safety_factor: float = 1.0
    mean_wait: bool = False

    def __post_init__(self) -> None:
        for name in ("capacity_tokens", "block_tokens", "wma_limit"):
            tokens = getattr(self, name)
            if tokens is not None and tokens < 1:
                raise ConfigError.of(name, tokens, "1 or more tokens")
        if self.batch_size is not None and self.batch_size < 1:
            raise ConfigError.of("batch_size", self.batch_size, "1 or more requests")
        for name in ("confidence", "memory_confidence"):
            if not 0 < getattr(self, name) < 1:
                raise ConfigError.of(name, getattr(self, name), "more than 0, less than 1")
        if not 0 < self.safety_factor < inf:
            raise ConfigError.of("safety_factor", self.safety_factor, "a finite number, more than 0")


def find_batch_preset(name: str) -> BatchPreset:
    """The row of that name. Raises ConfigError for an unknown one."""
    if name not in BATCH_PRESETS:
        raise ConfigError(f"unknown batches {name!r}; {meant(name, BATCH_PRESETS)}")
    return BATCH_PRESETS[name]


def build_batch_queue(name: str, settings: BatchSettings, batch_time: BatchTime | None = None) -> BatchQueue:
    """Make a fresh queue. Raises ConfigError for an unknown name, or a row that needs `batch_time` without it."""
    row = find_batch_preset(name)
    return BatchQueue(
        joining=_joining(row, settings),
        choosing=_choosing(row, settings, batch_time),
        planned=PlannedLength(settings.confidence, settings.memory_confidence, settings.safety_factor),
        batch_time=batch_time,
    )


def _joining(row: BatchPreset, settings: BatchSettings) -> Joining:
    size = settings.batch_size or row.batch_size
    if not row.by_waste:
        assert size is not None, "a row of fixed size has one"
        return FixedSize(size)
    if settings.capacity_tokens is None:
        raise ConfigError(f"batches {row.name!r} need the memory of an instance; found none")
    return LeastWaste(
        capacity_tokens=settings.capacity_tokens,
        block_tokens=settings.block_tokens,
        wma_limit=settings.wma_limit,
        wma_share=settings.wma_share,
        max_size=size,
        inclusive=settings.inclusive,
    )


def _choosing(row: BatchPreset, settings: BatchSettings, batch_time: BatchTime | None) -> Choosing:
    if not row.by_ratio:
        return FirstCome()
    if batch_time is None:
        raise ConfigError(f"batches {row.name!r} need an estimate of a batch's time; found none")
    return HighestRatio(batch_time, settings.mean_wait)
