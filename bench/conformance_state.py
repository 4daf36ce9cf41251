"""The real scheduler's state, copied into a simulated engine, so that one step can be compared from it."""

from __future__ import annotations

import copy
from typing import Any

from headway.core.host_copies import HostCopies
from headway.core.plan import Reason, StepOutcome, StepPlan
from headway.engine.kv.scheduler_side import VllmBlocks
from headway.sim.engine import SimulatedEngine, _Flight
from headway.sim.kv_pool import KvPool
from headway.sim.limits import EngineLimits


def copied_engine(scheduler: Any, limits: EngineLimits) -> SimulatedEngine:
    """A simulated engine in the state of `scheduler` (an `engine.PolicyScheduler`), for one `schedule`.

    Jobs, ledger and policy are deep copies of the plug-in's own; the pool is rebuilt from vLLM's block
    pool and block tables; what is in flight from vLLM's counters. Output lengths are not known here and
    not needed: they only matter when a step's output comes.
    """
    tier = None if scheduler.swaps is None else host_state(scheduler.swaps.copies)
    ledger, policy, tier = copy.deepcopy((scheduler.ledger, scheduler.guard.policy, tier))
    engine = SimulatedEngine(limits, policy, on_end=lambda record: None)
    engine.ledger = ledger
    in_flight = StepOutcome(now_s=0.0, plan=StepPlan())
    for job in (*ledger.waiting.values(), *ledger.swapped.values(), *ledger.residents):
        request = scheduler.requests[job.id]
        engine.expect(job, request.num_tokens + request.max_tokens)
        job.num_output_placeholders = request.num_output_placeholders
        if request.num_stale_output_tokens:
            engine.pool.not_ready[job] = Reason.STALE_OUTPUT
        if request.num_in_flight_tokens:
            in_flight.tokens[job] = request.num_in_flight_tokens
    engine._flights.append(_Flight(in_flight))
    copy_pool(scheduler, engine)
    if tier is not None:
        copy_tier(tier, scheduler.swaps.device, engine)
    return engine


HOST_STATE = ("host", "started", "restoring", "_idle", "_running", "_sides", "_under_way")


def host_state(copies: HostCopies) -> dict[str, Any]:
    """What the plug-in's host copies consist of, but for the device."""
    return {name: getattr(copies, name) for name in HOST_STATE}


def copy_tier(state: dict[str, Any], device: VllmBlocks, engine: SimulatedEngine) -> None:
    """Give the engine's tier the plug-in's copies, and its pool the references they hold."""
    assert engine.host is not None
    for name, value in state.items():
        setattr(engine.host.copies, name, value)
    for side in engine.host.copies._sides.values():
        side.leaving = side.leaving and [block - 1 for block in side.leaving]
    for copied in engine.host.copies._under_way:
        object.__setattr__(copied, "blocks", tuple(block - 1 for block in copied.blocks))
    engine.pool._pins.update({block - 1: pins for block, pins in device._pins.items()})


def copy_pool(scheduler: Any, engine: SimulatedEngine) -> None:
    """Fill the engine's pool from vLLM's: block n there is block n - 1 here, since its null block is block 0."""
    manager = scheduler.kv_cache_manager.coordinator.single_type_managers[0]
    block_pool = scheduler.kv_cache_manager.block_pool
    pool = engine.pool
    keys: dict[Any, int] = {}

    def key_of(block_hash: Any) -> int:
        return keys.setdefault(block_hash, len(keys))

    pool._free.clear()
    for block in block_pool.free_block_queue.get_all_free_blocks():
        pool._free[block.block_id - 1] = None
    for block in block_pool.blocks[1:]:
        pool._references[block.block_id - 1] = block.ref_cnt
        if block.block_hash is not None:
            pool._key_of[block.block_id - 1] = key_of(block.block_hash)
    _copy_holders(block_pool, pool, key_of)
    ledger = engine.ledger
    for job in (*ledger.waiting.values(), *ledger.swapped.values(), *ledger.residents):
        request = scheduler.requests[job.id]
        # All known tokens have hashes there, generated ones too: all of a job's keys are shared ones here.
        pool.add(job, [key_of(_in_group(block_hash)) for block_hash in request.block_hashes])
        table = pool._tables[job]
        table.blocks = [block.block_id - 1 for block in manager.req_to_blocks.get(job.id, ())]
        table.num_cached = manager.num_cached_block.get(job.id, 0) if table.blocks else 0
        table.room_tokens = len(table.blocks) * pool.block_size
        if request in scheduler.running:
            pool.started(job)
        if request in scheduler._inflight_prefills:
            pool._unfinished[job] = None


def _copy_holders(block_pool: Any, pool: KvPool, key_of: Any) -> None:
    for block_hash, held in block_pool.cached_block_hash_to_block._cache.items():
        blocks = held.values() if isinstance(held, dict) else [held]
        pool._holders[key_of(block_hash)] = {block.block_id - 1: None for block in blocks}


def _in_group(block_hash: Any) -> Any:
    from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

    return make_block_hash_with_group_id(block_hash, 0)
