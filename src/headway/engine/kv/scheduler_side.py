"""The scheduler's side of swapping: applies the decisions of `core.host_copies` to vLLM's block pool."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.v1.metrics.stats import KV_FETCH_COMPLETED_WAITING, KV_FETCH_IN_PROGRESS
from vllm.v1.request import Request, RequestStatus

from headway.core.host_copies import Copy, Direction, HostCopies
from headway.core.job import Job, JobState
from headway.core.plan import Fate, StepPlan
from headway.engine.host_kv import HostKv, most_layers
from headway.engine.kv.copies import CopyOrder, CopyOrders, CopyReport
from headway.engine.step.admission import Admission
from headway.engine.step.ports import KvPort
from headway.engine.step.stall_recovery import PATIENCE_S
from headway.engine.step.step_listeners import StepListeners

if TYPE_CHECKING:
    from vllm.v1.request import Request


logger = logging.getLogger(__name__)


class VllmBlocks:
    """vLLM's block pool as the copies need it. Blocks are named by vLLM's numbers."""

    def __init__(self, manager: Any, block_size: int) -> None:
        self._manager = manager
        self._pool = manager.block_pool
        self.block_size = block_size
        self._pins: Counter[int] = Counter()

    def blocks(self, job: Job) -> Sequence[int]:
        """The blocks of a request, in the order of its tokens."""
        ids: Sequence[int] = self._manager.get_block_ids(job.id)[0]
        return ids

    def pin(self, blocks: Sequence[int]) -> None:
        """Hold a reference to each block, so that vLLM gives it to no other request."""
        self._pool.touch([self._pool.blocks[block] for block in blocks])
        self._pins.update(blocks)

    def unpin(self, blocks: Sequence[int]) -> None:
        """Release the references in vLLM's order: the last block is reused first."""
        for block in blocks:
            self._pins[block] -= 1
            if not self._pins[block]:
                del self._pins[block]
        self._pool.free_blocks([self._pool.blocks[block] for block in reversed(blocks)])

    @contextmanager
    def let_go(self) -> Iterator[None]:
        """Release all references for the duration of the block, in which nothing may be allocated."""
        pinned = list(self._pins.elements())
        for block in pinned:
            self.unpin([block])
        try:
            yield
        finally:
            self.pin(pinned)

    @property
    def coming_free(self) -> int:
        """Blocks that only copies hold; O(blocks pinned)."""
        blocks = self._pool.blocks
        return sum(blocks[block].ref_cnt == pins for block, pins in self._pins.items())

    @property
    def num_pins(self) -> int:
        """Number of pins; a block counts once for each copy."""
        return self._pins.total()


@dataclass(slots=True)
class _Ordered:
    """A copy that was sent to the workers, and how many of them have not answered."""

    copy: Copy
    workers_left: int
    seconds: float = 0.0
    failed: bool = False


class KvSwaps:
    """Answers vLLM's calls to a KV connector for a `PolicyScheduler`, and follows the workers' reports.

    Serial copies count as done once ordered, since workers finish them before the step. Other copies hold references to
    their device blocks until every worker has answered. `found_tokens` has, for each swapped job that could come back
    when vLLM asked in this step, the tokens found on the device.
    """

    def __init__(
        self, engine: KvPort, host: HostKv, admission: Admission, listeners: StepListeners, *, serial: bool
    ) -> None:
        self._engine = engine
        self._world_size = engine.vllm_config.parallel_config.world_size
        self.device = VllmBlocks(engine.kv_cache_manager, engine.block_size)
        total_blocks = engine.kv_cache_manager.block_pool.num_gpu_blocks - 1
        self.copies = HostCopies(
            self.device,
            host.num_blocks(
                engine.kv_cache_config,
                self._world_size,
                most_layers=most_layers(engine.vllm_config),
            ),
            restore_blocks=int(host.restore_share * total_blocks),
            serial=serial,
            in_flight=self._in_flight,
        )
        self.requests = SwappedRequests(engine, self, admission, listeners)
        self.admitted: list[Job] = []
        self.found_tokens: dict[Job, int] = {}
        self._ordered: dict[int, _Ordered] = {}
        self._numbers = 0
        self.step_waits = False
        self.answered_s = 0.0
        self._short_since_s: float | None = None
        view = engine.view
        view.host_total_blocks = self.copies.host.num_blocks
        view.uncopied_blocks, view.unsent_blocks = self.copies.uncopied_blocks, self.copies.unsent_blocks

    def _in_flight(self, job: Job) -> bool:
        return bool(self._engine.requests[job.id].num_in_flight_tokens)

    # ---- what vLLM asks while it admits --------------------------------------------------------------------

    def matched(self, request: Request, num_local_tokens: int) -> tuple[int | None, bool]:
        """How many tokens of a swapped request to copy back beyond those found on the device, and whether
        asynchronously.

        (None, False) while the request cannot come back.
        """
        job: Job = self._engine.jobs[request.request_id]
        if job.state is not JobState.SWAPPED:
            return 0, False
        if self.copies.ready(job) is not None:
            return None, False
        self.found_tokens[job] = num_local_tokens
        missing = min(job.num_computed_tokens, request.num_tokens - 1) - num_local_tokens
        return (missing, not self.copies.serial) if missing > 0 else (0, False)

    def allocated(
        self, request: Request, blocks: Sequence[int], num_external_tokens: int, *, in_batch: bool = True
    ) -> None:
        """A request got its blocks: it is admitted (with a place `in_batch` or without), or runs again."""
        job: Job = self._engine.jobs[request.request_id]
        if job.state is JobState.RESIDENT:
            self.copies.runs(job)
            return
        self.admitted.append(job)
        if job.state is not JobState.SWAPPED:
            return
        num_found = self.found_tokens[job] // self.device.block_size if num_external_tokens else len(blocks)
        self.copies.bring_back(job, blocks, num_found)
        waits = job in self.copies.restoring
        if in_batch and waits:
            self._engine.take_seat()
        elif in_batch:
            self.copies.runs(job)
        elif not waits:
            self.requests.back(job)

    def leave(self, request: Request, fate: Fate | None, *, is_void: bool) -> Fate:
        """Let a request leave the device, and return what becomes of its KV. KV that `is_void` is not worth keeping.

        Without a `fate` the preemption is vLLM's own. Its blocks are needed at once, so only KV that is on the host
        already is swapped.
        """
        engine, job = self._engine, self._engine.jobs[request.request_id]
        # Drafts in flight may be refused after the copy, so the number of valid tokens is not known yet.
        uncertain = bool(engine.num_spec_tokens and request.num_in_flight_tokens)
        if (
            request.skip_reading_prefix_cache or is_void or uncertain
        ):  # vLLM would not load the KV again, or it is void
            fate = Fate.RECOMPUTE
        elif fate is None:
            fate = self.copies.shortage_fate(job)
        left_as = self.copies.leave(job, fate)
        engine.counters.refused_swaps += left_as is not fate
        return left_as

    def put_back(self, request: Request, fate: Fate) -> None:
        """Preempt a request that came back, or is coming back, and has not run."""
        job = self._engine.jobs[request.request_id]
        self._engine.preempted[job] = self.copies.leave(job, fate)
        self._engine.counters.put_backs += 1
        self.requests.put_back(request)
        self.copies.advance(job)

    def ran(self, request_ids: Iterable[str]) -> None:
        """A step's output arrived: drop the host copies of requests that ran; start the copies of swapped ones."""
        if not (self.copies.awaited or self._engine.ledger.swapped):
            return
        for job in filter(None, map(self._engine.jobs.get, request_ids)):
            self.copies.ran(job)
            if job.state is JobState.SWAPPED:
                self.copies.advance(job)

    @contextmanager
    def given_up(self, *, returned_too: bool) -> Iterator[None]:
        """Drop everything on the host, and hold no blocks, while the prefix cache is reset."""
        self.requests.give_up_all(returned_too=returned_too)
        with self.device.let_go():
            yield

    def forget(self, job: Job) -> None:
        """A request has ended."""
        self.copies.forget(job)
        self.found_tokens.pop(job, None)

    def waits_for_blocks(self) -> bool:
        """Whether a step short of blocks should end here, because copies under way will free some.

        vLLM then admits no request in this step. This lasts at most PATIENCE_S at a time.
        """
        if not self.device.coming_free:
            self._short_since_s = None
            return False
        now_s = self._engine.clock()
        if self._short_since_s is None:
            self._short_since_s = now_s
        if now_s - self._short_since_s > PATIENCE_S:
            return False
        self._engine.close_admission()
        return True

    # ---- orders and reports --------------------------------------------------------------------------------

    def orders(self) -> CopyOrders:
        """The copies that start with the step being scheduled; called when the step is filled but for its
        prefetches.
        """
        plan = self._engine.step.plan
        if plan.prefetch and not self._engine.short_of_blocks:
            self.requests.prefetch(plan)
        started, self.copies.started = self.copies.started, []
        orders = CopyOrders(serial=self.copies.serial)
        self.step_waits = orders.serial and bool(started)
        for copy in started:
            self._numbers += 1
            self._ordered[self._numbers] = _Ordered(copy, self._world_size)
            order = CopyOrder(self._numbers, tuple(copy.blocks), tuple(copy.host_blocks))
            (orders.to_host if copy.direction is Direction.TO_HOST else orders.to_device).append(order)
        return orders

    def hear(self, report: CopyReport) -> None:
        """Read a worker report: a copy is done when all workers made it, and failed if any could not."""
        counters = self._engine.counters
        counters.copy_wait_s += report.waited_s
        counters.forward_s += report.forward_s
        for number, (workers, seconds) in report.done.items():
            self._answered(number, workers, seconds)
        for number, workers in report.failed.items():
            self._ordered[number].failed = True
            self._answered(number, workers, 0.0)

    def _answered(self, number: int, workers: int, seconds: float) -> None:
        ordered = self._ordered[number]
        ordered.workers_left -= workers
        ordered.seconds = max(ordered.seconds, seconds)
        if not ordered.workers_left:
            del self._ordered[number]
            self._short_since_s = None
            self.answered_s = self._engine.clock()
            self._conclude(ordered)

    def _conclude(self, ordered: _Ordered) -> None:
        copy, copies = ordered.copy, self.copies
        if ordered.failed:
            self._engine.counters.failed_copies += 1
            logger.warning("a copy of %d KV blocks %s failed", len(copy.blocks), copy.direction.value)
            lost = copies.spoiled(copy) if copies.serial else copies.fail(copy)
            if lost:
                self.requests.lost(copy.job)
            return
        self._learn(copy, ordered.seconds)
        if not copies.serial:
            back = copy is copies.restoring.get(copy.job)
            copies.finish(copy)
            if back:
                self.requests.back(copy.job)

    def _learn(self, copy: Copy, seconds: float) -> None:
        """Count a finished copy, and learn what copies cost from the slowest worker's `seconds`."""
        counters, cost, num_blocks = self._engine.counters, self._engine.cost, len(copy.blocks)
        if copy.direction is Direction.TO_HOST:
            counters.swapped_out_blocks += num_blocks
            counters.swap_out_s += seconds
            cost.to_host.observe(num_blocks, seconds)
        else:
            counters.swapped_in_blocks += num_blocks
            counters.swap_in_s += seconds
            cost.to_device.observe(num_blocks, seconds)

    # ---- checks ------------------------------------------------------------------------------------

    def check(self, residents: Sequence[Job]) -> None:
        """Assert that blocks are conserved on both sides; for tests."""
        self.copies.check(residents)
        assert self.device.num_pins == self.copies.num_pinned


class SwappedRequests:
    """Puts requests back, prefetches them, and has them computed again when a copy failed."""

    def __init__(
        self, engine: KvPort, swaps: KvSwaps, admission: Admission, listeners: StepListeners
    ) -> None:
        self._engine = engine
        self._admission = admission
        self._listeners = listeners
        self._swaps = swaps

    def put_back(self, request: Request) -> None:
        """Take the blocks of a request that came back, or is coming back, and has not run; the request waits again."""
        engine = self._engine
        engine.kv_holding_waiting.remove_request(request)
        engine.kv_cache_manager.free(request)
        engine._inflight_prefills.discard(request)
        engine.finished_recving_kv_req_ids.discard(request.request_id)
        engine.deferred_waiting.discard(request)
        engine._set_kv_fetch_stage(request, None)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        engine.waiting.prepend_request(request)

    # ---- prefetches ----------------------------------------------------------------------------------------

    def prefetch(self, plan: StepPlan) -> None:
        """Bring the plan's swapped requests back without a place in the batch, into free slots and blocks.

        vLLM does this only inside its admission loop; the calls here are the same. Called after that loop, in a step
        that was not short of blocks.
        """
        engine = self._engine
        slots = engine.max_num_running_reqs - len(engine.running) - len(engine.kv_holding_waiting)
        for request in engine.waiting.find(job.id for job in plan.prefetch):
            if slots <= 0:
                return
            if self._admission.not_ready(request) is None:
                if not self._fetch(request):
                    return
                slots -= 1

    def _fetch(self, request: Request) -> bool:
        """Allocate blocks for a swapped request and start the copy; False if the request does not fit."""
        engine = self._engine
        manager = engine.kv_cache_manager
        found, num_local, *_ = manager.get_computed_blocks(request)
        num_external, waits = self._swaps.matched(request, num_local)
        assert num_external is not None, "asked for a request that is not ready"
        blocks = manager.allocate_slots(
            request,
            0,
            num_new_computed_tokens=num_local,
            new_computed_blocks=found,
            num_external_computed_tokens=num_external,
            delay_cache_blocks=True,
            full_sequence_must_fit=engine.scheduler_reserve_full_isl,
            reserved_blocks=engine._inflight_prefill_reserved_blocks() if waits else 0,
            has_scheduled_reqs=bool(engine.running),
        )
        if blocks is None:
            return False
        engine.waiting.remove_request(request)
        engine.kv_holding_waiting.add_request(request)
        request.status = RequestStatus.WAITING_FOR_REMOTE_KVS
        request.num_computed_tokens = num_local + num_external
        if waits:
            engine._inflight_prefills.add(request)
            engine._set_kv_fetch_stage(request, KV_FETCH_IN_PROGRESS)
        engine.counters.prefetches += 1
        ids = manager.get_block_ids(request.request_id)[0]
        self._swaps.allocated(request, ids, num_external, in_batch=False)
        return True

    def back(self, job: Job) -> None:
        """All KV of a request is back: vLLM may resume it."""
        engine = self._engine
        engine.finished_recving_kv_req_ids.add(job.id)
        engine._set_kv_fetch_stage(engine.requests[job.id], KV_FETCH_COMPLETED_WAITING)

    # ---- KV that is lost ---------------------------------------------------------------------------

    def lost(self, job: Job) -> None:
        """The host lost a request's KV: the request is computed again."""
        engine = self._engine
        engine.counters.lost_copies += 1
        if job.state is JobState.SWAPPED:
            self._listeners.copy_lost(job)
        elif job.state is JobState.RESIDENT:
            self.put_back(engine.requests[job.id])
            engine.preempted[job] = Fate.RECOMPUTE

    def give_up(self, job: Job) -> None:
        """Drop the host copy of a request that is swapped, or is back and has not run."""
        self._swaps.copies.forget(job)
        self.lost(job)

    def give_up_all(self, *, returned_too: bool) -> None:
        """Drop the host copies of all swapped requests and of those coming back; with `returned_too`, of those that
        are back.
        """
        engine = self._engine
        for job in list(engine.ledger.swapped.values()):
            self.give_up(job)
        for request in self._not_resumed() if returned_too else ():
            self.give_up(engine.jobs[request.request_id])

    def distrust(self, invalid_blocks: Collection[int]) -> None:
        """A step ran without KV that it should have waited for: drop everything that may stem from these blocks.

        Requests that hold the blocks, shared ones too, are computed again, and so are requests swapped out with output
        in flight. That output was sampled on missing KV. vLLM's own recovery would deliver the next step's output.
        """
        engine = self._engine
        for request in [request for request in engine.running if self._holds(request, invalid_blocks)]:
            engine.running.remove(request)
            engine.counters.lost_copies += 1
            engine._preempt_request(request, engine.clock(), drop_stale_output=True)
        for request in [held for held in self._not_resumed() if self._holds(held, invalid_blocks)]:
            self.give_up(engine.jobs[request.request_id])
        for request in [left for left in engine.waiting if left.num_stale_output_tokens]:
            request.drop_stale_output = True
            if request.request_id in engine.ledger.swapped:
                self.give_up(engine.jobs[request.request_id])
        manager = engine.kv_cache_manager
        manager.evict_blocks(set(range(manager.block_pool.num_gpu_blocks)))

    def _holds(self, request: Request, blocks: Collection[int]) -> bool:
        ids = self._engine.kv_cache_manager.get_block_ids(request.request_id)[0]
        return not set(blocks).isdisjoint(ids)

    def _not_resumed(self) -> list[Request]:
        """Requests that came back from the host, or are coming back, and have not run since."""
        engine, returned = self._engine, self._swaps.copies.returned
        held = engine.kv_holding_waiting
        return [request for request in held if engine.jobs[request.request_id] in returned]
