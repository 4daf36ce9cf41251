"""The runs of `bench/swap.py`: one policy serves one load, after the costs of this machine are known."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.engine_time import EngineTime
from bench.swap_cases import BLOCK_TOKENS, SERIAL, Load
from bench.swap_engine import CopySeconds, Watch, WatchedEngine, copies_on_worker
from bench.swap_figures import COUNTED, Run, run_of
from headway.engine.settings import EngineSettings

OTHER_SEED = 10**6
"""What requests that do not count are drawn with, on top of the run's own seed."""
SIZES_BLOCKS = (1, 2, 4, 8, 16)
"""Of the copies on an idle engine."""
PROBED_TOKENS = (32, 64, 128, 256, 384, 512)


def run_once(
    engine: WatchedEngine,
    clock: EngineTime,
    *,
    load: Load,
    settings: EngineSettings,
    seed: int,
    learning_share: float,
    bytes_per_s: float | None,
) -> Run:
    """Serve a load under one policy, after some requests of the same kind from which it learns costs."""
    engine.limit_copies(bytes_per_s)
    engine.schedule_with(settings)
    gc.collect()
    clock.begin()
    if learning := round(learning_share * load.requests):
        engine.serve(load.draw(learning, seed + OTHER_SEED), seed, clock)
    counters = engine.scheduler.counters
    before = {name: getattr(counters, name) for name in COUNTED}
    engine.watch = watch = Watch()
    makespan_s = engine.serve(load.draw(load.requests, seed), seed, clock)
    if counters.policy_faults or counters.refused_swaps or counters.failed_copies:
        raise RuntimeError(f"the policy or its copies failed: {counters}")
    grown = {name: getattr(counters, name) - before[name] for name in COUNTED}
    return run_of(watch, makespan_s, grown)


@dataclass(frozen=True, slots=True)
class Victim:
    """A load's mean victim under a policy that always recomputes."""

    victim_tokens: int
    prefill_s: float
    break_even_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Costs:
    """What this machine takes to prefill so many tokens, and to copy so many blocks."""

    prefill_s: Mapping[int, float]
    copies: Mapping[int, CopySeconds]
    block_bytes: int

    def break_even_bytes_per_s(self, num_tokens: int, prefill_s: float) -> float:
        """The bandwidth at which so many tokens' KV takes as long out and back as to be computed again."""
        return 2 * -(-num_tokens // BLOCK_TOKENS) * self.block_bytes / prefill_s

    def to_dict(self) -> dict[str, Any]:
        """By number of tokens."""
        return {
            str(tokens): {
                "prefill_s": seconds,
                "kv_bytes": -(-tokens // BLOCK_TOKENS) * self.block_bytes,
                "break_even_bytes_per_s": self.break_even_bytes_per_s(tokens, seconds),
            }
            for tokens, seconds in self.prefill_s.items()
        }

    def copy_bandwidth(self) -> dict[str, Any]:
        """By number of blocks, in bytes a second."""
        return {
            str(blocks): {
                "bytes": blocks * self.block_bytes,
                **{
                    f"{way}_bytes_per_s": blocks * self.block_bytes / getattr(seconds, way)
                    for way in CopySeconds._fields
                },
            }
            for blocks, seconds in self.copies.items()
        }


def costs_and_victims(
    engine: WatchedEngine, clock: EngineTime, *, loads: Sequence[Load]
) -> tuple[Costs, dict[str, Victim]]:
    """What comes before all runs: prefills and copies alone, then each load's mean victim, by the load's name."""
    costs = _costs(engine)
    return costs, {load.name: _victim(engine, clock, load, costs) for load in loads}


def _costs(engine: WatchedEngine) -> Costs:
    """Prefills alone, and copies on an idle engine without a limit."""
    engine.limit_copies(None)
    block_bytes = engine.sizes.kv_bytes_per_token * BLOCK_TOKENS
    engine.prefill_s(PROBED_TOKENS[-1])  # the first pays for allocations
    found = engine.on_workers(copies_on_worker, SIZES_BLOCKS, block_bytes)[0]
    return Costs(
        {tokens: engine.prefill_s(tokens) for tokens in PROBED_TOKENS},
        dict(zip(SIZES_BLOCKS, found, strict=True)),
        block_bytes,
    )


def _victim(engine: WatchedEngine, clock: EngineTime, load: Load, costs: Costs) -> Victim:
    settings = SERIAL.settings()["recompute"]
    run = run_once(engine, clock, load=load, settings=settings, seed=0, learning_share=0.0, bytes_per_s=None)
    tokens = round(run.recomputed_tokens / run.recomputes)
    prefill_s = engine.prefill_s(tokens)
    return Victim(tokens, prefill_s, costs.break_even_bytes_per_s(tokens, prefill_s))
