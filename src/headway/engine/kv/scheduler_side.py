"""The scheduler's side of swapping: `core.host_copies` decides, in vLLM's own block pool."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway.core.host_copies import Copy, Direction, HostCopies
from headway.core.job import Job, JobState
from headway.engine.kv.connector import HeadwayConnector
from headway.engine.kv.host import HostKv, most_layers, why_not
from headway.engine.kv.orders import CopyOrder, CopyOrders, CopyReport
from headway.engine.kv.requests import KvRequests
from headway.engine.step.watchdog import PATIENCE_S

if TYPE_CHECKING:
    from vllm.v1.request import Request

logger = logging.getLogger(__name__)


class VllmBlocks:
    """vLLM's block pool as copies need it; blocks go by vLLM's own numbers."""

    def __init__(self, manager: Any, block_size: int) -> None:
        self._manager = manager
        self._pool = manager.block_pool
        self.block_size = block_size
        self._pins: Counter[int] = Counter()

    def blocks(self, job: Job) -> Sequence[int]:
        """The blocks a request holds, in the order of its tokens."""
        ids: Sequence[int] = self._manager.get_block_ids(job.id)[0]
        return ids

    def pin(self, blocks: Sequence[int]) -> None:
        """Hold a reference to each block, so that vLLM gives it to nobody else."""
        self._pool.touch([self._pool.blocks[block] for block in blocks])
        self._pins.update(blocks)

    def unpin(self, blocks: Sequence[int]) -> None:
        """Give the references back, as vLLM does: the last block is taken first."""
        for block in blocks:
            self._pins[block] -= 1
            if not self._pins[block]:
                del self._pins[block]
        self._pool.free_blocks([self._pool.blocks[block] for block in reversed(blocks)])

    @contextmanager
    def let_go(self) -> Iterator[None]:
        """Hold no references for a moment, in which nothing may be allocated."""
        pinned = list(self._pins.elements())
        for block in pinned:
            self.unpin([block])
        try:
            yield
        finally:
            self.pin(pinned)

    @property
    def coming_free(self) -> int:
        """Blocks that nothing but copies holds; O(blocks pinned)."""
        blocks = self._pool.blocks
        return sum(blocks[block].ref_cnt == pins for block, pins in self._pins.items())

    @property
    def num_pins(self) -> int:
        """Blocks pinned, once for each copy."""
        return self._pins.total()


@dataclass(slots=True)
class _Ordered:
    """A copy its workers have been told of, and how many have not answered."""

    copy: Copy
    workers_left: int
    seconds: float = 0.0
    failed: bool = False


class KvSwaps:
    """Answers vLLM's questions to a KV connector for a `PolicyScheduler`, and follows what its workers report.

    Serial copies count as done when they are ordered: workers make the step wait for them, and later steps
    come later. Others hold references to their device blocks until every worker has answered. `found_tokens` are
    those found on the device of each swapped job that could come back when vLLM asked in the step being filled.
    """

    def __init__(self, scheduler: Any, host: HostKv, *, serial: bool) -> None:
        self._scheduler = scheduler
        self._world_size = scheduler.vllm_config.parallel_config.world_size
        self.device = VllmBlocks(scheduler.kv_cache_manager, scheduler.block_size)
        total_blocks = scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1
        self.copies = HostCopies(
            self.device,
            host.num_blocks(
                scheduler.kv_cache_config,
                self._world_size,
                most_layers=most_layers(scheduler.vllm_config),
            ),
            restore_blocks=int(host.restore_share * total_blocks),
            serial=serial,
            in_flight=self._in_flight,
        )
        self.requests = KvRequests(scheduler, self)
        self.admitted: list[Job] = []
        self.found_tokens: dict[Job, int] = {}
        self._ordered: dict[int, _Ordered] = {}
        self._numbers = 0
        self.step_waits = False
        self.answered_s = 0.0
        self._short_since_s: float | None = None

    def _in_flight(self, job: Job) -> bool:
        return bool(self._scheduler.requests[job.id].num_in_flight_tokens)

    # ---- what vLLM asks while it admits ------------------------------------------------------------

    def matched(self, request: Request, num_local_tokens: int) -> tuple[int | None, bool]:
        """Tokens of a swapped request to copy back past those found on the device, and whether beside the steps.

        (None, False) while it cannot come back.
        """
        job: Job = self._scheduler.jobs[request.request_id]
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
        """A request has its blocks: it is admitted, with or without a place `in_batch`, or runs again at last."""
        job: Job = self._scheduler.jobs[request.request_id]
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
            self._scheduler.take_seat()
        elif in_batch:
            self.copies.runs(job)
        elif not waits:
            self.requests.back(job)

    def forget(self, job: Job) -> None:
        """A request has ended."""
        self.copies.forget(job)
        self.found_tokens.pop(job, None)

    def waits_for_blocks(self) -> bool:
        """Whether a step short of blocks should end here: copies that are on their way hold some.

        Nobody is admitted in such a step. Not for longer than PATIENCE_S at a time.
        """
        if not self.device.coming_free:
            self._short_since_s = None
            return False
        now_s = self._scheduler.clock()
        if self._short_since_s is None:
            self._short_since_s = now_s
        if now_s - self._short_since_s > PATIENCE_S:
            return False
        self._scheduler.close_admission()
        return True

    # ---- orders and reports ------------------------------------------------------------------------

    def orders(self) -> CopyOrders:
        """The copies that start with the step being scheduled, which is filled but for its prefetches."""
        plan = self._scheduler.shaped_plan
        if plan.prefetch and not self._scheduler.short_of_blocks:
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
        """Workers have answered: a copy that all of them have made is done, one that any could not has failed."""
        counters = self._scheduler.counters
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
            self.answered_s = self._scheduler.clock()
            self._conclude(ordered)

    def _conclude(self, ordered: _Ordered) -> None:
        copy, copies = ordered.copy, self.copies
        if ordered.failed:
            self._scheduler.counters.failed_copies += 1
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
        """Count a copy that all workers have made, the slowest of them in `seconds`, and learn what copies cost."""
        counters, cost, num_blocks = self._scheduler.counters, self._scheduler.cost, len(copy.blocks)
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


def swaps_of(scheduler: Any, *, serial: bool) -> KvSwaps | None:
    """The swaps of a scheduler whose engine has Headway's connector and a model whose KV can be copied."""
    connector = scheduler.connector
    if not isinstance(connector, HeadwayConnector):
        return None
    reason = why_not(scheduler.kv_cache_config, zeroes_blocks=scheduler.needs_kv_cache_zeroing)
    if reason is not None:
        logger.warning("KV is not swapped, preempted requests are recomputed: %s", reason)
        return None
    connector.swaps = KvSwaps(scheduler, HostKv.of(scheduler.vllm_config), serial=serial)
    return connector.swaps
