"""The decisions of one step, how two engines differ in them, and a real scheduler copied into a simulated one."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from headway.core.host_copies import HostCopies
from headway.core.job import Job
from headway.core.ledger import Ledger
from headway.core.plan import Departure, Fate, Reason, StepOutcome, StepPlan
from headway.engine.kv.scheduler_side import VllmBlocks
from headway.policies.order.governed import Governed
from headway.policies.order.skip_join_mlfq import SkipJoinMlfq
from headway.policies.protocols import Order, Predicting
from headway.sim.engine import SimulatedEngine, _Flight
from headway.sim.kv_pool import KvPool
from headway.sim.limits import EngineLimits

if TYPE_CHECKING:
    from headway.engine.scheduler import PolicyScheduler


@dataclass(frozen=True, slots=True)
class Before:
    """An engine's state before a step: its residents, those back from the host, free blocks of device and host."""

    residents: Sequence[Job]
    returned: Collection[str]
    free: tuple[int, int]


def before(ledger: Ledger, returned: Collection[Job], free: tuple[int, int]) -> Before:
    """The state before a step; copies what the step changes."""
    return Before(ledger.residents, {job.id for job in returned}, free)


@dataclass(frozen=True, slots=True)
class OrderState:
    """An order's state about live jobs: the queue of each, and whether it uses predicted lengths."""

    levels: dict[str, int]
    trusting: bool


@dataclass(slots=True)
class Decisions:
    """The decisions of one engine in one step; free blocks are of device and host.

    `paused` keep their KV and get no tokens, as planned. `put_back` are those of `preempted` that had come back from
    the host and not run since, `departures` why each of `left` leaves, `prefetched` those of `admitted` that came back
    without a place in the batch. `levels` are the queues of all live jobs after the step, where the order has queues;
    `trusting`: whether it uses predicted lengths.
    """

    admitted: list[str]
    granted: dict[str, int]
    paused: set[str]
    preempted: dict[str, Fate]
    put_back: set[str]
    offloaded: list[str]
    prefetched: list[str]
    left: set[str]
    departures: dict[str, Departure]
    levels: dict[str, int]
    trusting: bool
    free_before: tuple[int, int]
    free_after: tuple[int, int]

    def count(self) -> int:
        """The number of decisions: the jobs of each part, and one each for the order's state and the free blocks."""
        parts = (self.admitted, self.granted, self.paused, self.preempted, self.offloaded, self.left)
        return sum(map(len, parts)) + 1

    def differences(self, real: Decisions) -> list[str]:
        """The differences from the real engine, in words."""
        names = [part.name for part in fields(self)]
        return [
            f"{name}: simulated {getattr(self, name)}, real {getattr(real, name)}"
            for name in names
            if getattr(self, name) != getattr(real, name)
        ]


def decisions(
    found: Before,
    outcome: StepOutcome,
    granted: Mapping[str, int],
    left: set[str],
    order: OrderState,
    free_after: tuple[int, int],
) -> Decisions:
    """The decisions of a step with this outcome; granted tokens and departures come from the engine itself."""
    plan = outcome.plan
    named = {*plan.run, *plan.preempt}
    prefetches = set(plan.prefetch)
    return Decisions(
        admitted=[job.id for job in outcome.admitted],
        granted=dict(granted),
        paused={job.id for job in found.residents if job not in named},
        preempted={job.id: fate for job, fate in outcome.preempted.items()},
        put_back={job.id for job in outcome.preempted if job.id in found.returned},
        offloaded=[job.id for job in outcome.offloaded],
        prefetched=[job.id for job in outcome.admitted if job in prefetches],
        left=left,
        departures={job.id: why for job, why in outcome.left.items()},
        levels=order.levels,
        trusting=order.trusting,
        free_before=found.free,
        free_after=free_after,
    )


def order_of(order: Order, ledger: Ledger) -> OrderState:
    """The state of an order; its queues are those of MLFQ, also where they are on standby."""
    trusting = isinstance(order, Predicting) and order.trusts_predictions
    queues = order._queues if isinstance(order, Governed) else order
    if not isinstance(queues, SkipJoinMlfq):
        return OrderState({}, trusting)
    live = [*ledger.waiting.values(), *ledger.swapped.values(), *ledger.residents]
    return OrderState({job.id: queues.level_of(job) for job in live}, trusting)


@dataclass(slots=True)
class Tally:
    """Decisions compared in one mode, and how many of them agreed.

    `met` counts the real engine's actions: preemptions, swaps, pauses and so on.
    """

    steps: int = 0
    decisions: int = 0
    same: int = 0
    met: Counter[str] = field(default_factory=Counter)
    first_difference: str | None = None
    differing: list[str] = field(default_factory=list)
    _levels: dict[str, int] = field(default_factory=dict)

    def note(self, where: str, ours: Decisions, real: Decisions) -> None:
        """Compare one step."""
        found = ours.differences(real)
        self.steps += 1
        self.decisions += real.count()
        self.same += real.count() - min(len(found), real.count())
        self._count(real)
        if found:
            self.differing.append(f"{where}: {'; '.join(found)}")
            self.first_difference = self.first_difference or self.differing[0]

    def _count(self, real: Decisions) -> None:
        moved = [
            level - self._levels[job]
            for job, level in real.levels.items()
            if job in self._levels and level != self._levels[job]
        ]
        self._levels = real.levels
        self.met.update(
            preemptions=len(real.preempted),
            swaps=sum(fate is Fate.SWAP for fate in real.preempted.values()),
            put_back=len(real.put_back),
            pauses=len(real.paused),
            offloads=len(real.offloaded),
            prefetches=len(real.prefetched),
            hand_offs=sum(why is Departure.HAND_OFF for why in real.departures.values()),
            expiries=sum(why is Departure.EXPIRED for why in real.departures.values()),
            demotions=sum(by > 0 for by in moved),
            promotions=sum(by < 0 for by in moved),
            trusting=real.trusting,
        )


# ---- the real scheduler's state, copied into a simulated engine --------------------------------------


def copied_engine(scheduler: PolicyScheduler, limits: EngineLimits) -> SimulatedEngine:
    """A simulated engine in the state of `scheduler` (an `engine.PolicyScheduler`), for one `schedule`.

    Jobs, ledger and policy are deep copies of the plug-in's own; the pool is rebuilt from vLLM's block pool and block
    tables; steps in flight come from vLLM's counters. Output lengths are unknown and not needed: they only matter when
    a step's output comes.
    """
    swaps = scheduler.swaps
    tier = None if swaps is None else host_state(swaps.copies)
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
    if tier is not None and swaps is not None:
        copy_tier(tier, swaps.device, engine)
    return engine


HOST_STATE = ("host", "started", "restoring", "_idle", "_running", "_sides", "_under_way")


def host_state(copies: HostCopies) -> dict[str, Any]:
    """The state of the plug-in's host copies, without the device."""
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


def copy_pool(scheduler: PolicyScheduler, engine: SimulatedEngine) -> None:
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
