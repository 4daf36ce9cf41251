"""Moves of requests whose KV is on the host, or on its way, for which vLLM has no call of its own."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from vllm.v1.metrics.stats import KV_FETCH_COMPLETED_WAITING, KV_FETCH_IN_PROGRESS
from vllm.v1.request import Request, RequestStatus

from headway.core.job import Job, JobState
from headway.core.plan import Fate, StepPlan

if TYPE_CHECKING:
    from headway.engine.kv.scheduler_side import KvSwaps


class KvRequests:
    """Puts requests back, fetches them ahead of need, and has them computed again when copies failed them."""

    def __init__(self, scheduler: Any, swaps: KvSwaps) -> None:
        self._scheduler = scheduler
        self._swaps = swaps

    def put_back(self, request: Request) -> None:
        """Take the blocks of a request that has come back, or is about to, and has not run; it waits again."""
        scheduler = self._scheduler
        scheduler.kv_holding_waiting.remove_request(request)
        scheduler.kv_cache_manager.free(request)
        scheduler._inflight_prefills.discard(request)
        scheduler.finished_recving_kv_req_ids.discard(request.request_id)
        scheduler.deferred_waiting.discard(request)
        scheduler._set_kv_fetch_stage(request, None)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        scheduler.waiting.prepend_request(request)

    # ---- ahead of need -----------------------------------------------------------------------------

    def prefetch(self, plan: StepPlan) -> None:
        """Bring the plan's swapped requests back without a place in the batch, from slots and blocks that are left.

        vLLM does so only in its admission loop; these are the calls it makes there. Called when that is over,
        for a step that was not short of blocks.
        """
        scheduler = self._scheduler
        slots = scheduler.max_num_running_reqs - len(scheduler.running) - len(scheduler.kv_holding_waiting)
        for request in scheduler.waiting.find(job.id for job in plan.prefetch):
            if slots <= 0:
                return
            if scheduler.admission.not_ready(request) is None:
                if not self._fetch(request):
                    return
                slots -= 1

    def _fetch(self, request: Request) -> bool:
        """Allocate for a swapped request and start to copy its KV back; False if it does not fit."""
        scheduler = self._scheduler
        manager = scheduler.kv_cache_manager
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
            full_sequence_must_fit=scheduler.scheduler_reserve_full_isl,
            reserved_blocks=scheduler._inflight_prefill_reserved_blocks() if waits else 0,
            has_scheduled_reqs=bool(scheduler.running),
        )
        if blocks is None:
            return False
        scheduler.waiting.remove_request(request)
        scheduler.kv_holding_waiting.add_request(request)
        request.status = RequestStatus.WAITING_FOR_REMOTE_KVS
        request.num_computed_tokens = num_local + num_external
        if waits:
            scheduler._inflight_prefills.add(request)
            scheduler._set_kv_fetch_stage(request, KV_FETCH_IN_PROGRESS)
        scheduler.counters.prefetches += 1
        ids = manager.get_block_ids(request.request_id)[0]
        self._swaps.allocated(request, ids, num_external, in_batch=False)
        return True

    def back(self, job: Job) -> None:
        """All of a request's KV is back: vLLM may resume it."""
        scheduler = self._scheduler
        scheduler.finished_recving_kv_req_ids.add(job.id)
        scheduler._set_kv_fetch_stage(scheduler.requests[job.id], KV_FETCH_COMPLETED_WAITING)

    # ---- KV that is lost ---------------------------------------------------------------------------

    def lost(self, job: Job) -> None:
        """What the host had of a request is lost: it is computed again."""
        scheduler = self._scheduler
        scheduler.counters.lost_copies += 1
        if job.state is JobState.SWAPPED:
            scheduler.following.copy_lost(job)
        elif job.state is JobState.RESIDENT:
            self.put_back(scheduler.requests[job.id])
            scheduler.preempted[job] = Fate.RECOMPUTE

    def give_up(self, job: Job) -> None:
        """Forget what the host has of a request that is swapped, or back and has not run."""
        self._swaps.copies.forget(job)
        self.lost(job)

    def give_up_all(self, *, returned_too: bool) -> None:
        """Forget what the host has of every swapped request, and of those on their way back or back."""
        scheduler = self._scheduler
        for job in list(scheduler.ledger.swapped.values()):
            self.give_up(job)
        for request in self._not_resumed() if returned_too else ():
            self.give_up(scheduler.jobs[request.request_id])

    def distrust(self, invalid_blocks: Collection[int]) -> None:
        """A step ran without KV that it had waited for: whatever may have come of these blocks is dropped.

        Requests that hold them, shared ones too, are computed again, and so are those swapped out with output
        in flight. That output was sampled on nothing; vLLM's own recovery would deliver the next step's.
        """
        scheduler = self._scheduler
        for request in [request for request in scheduler.running if self._holds(request, invalid_blocks)]:
            scheduler.running.remove(request)
            scheduler.counters.lost_copies += 1
            scheduler._preempt_request(request, scheduler.clock(), drop_stale_output=True)
        for request in [held for held in self._not_resumed() if self._holds(held, invalid_blocks)]:
            self.give_up(scheduler.jobs[request.request_id])
        for request in [left for left in scheduler.waiting if left.num_stale_output_tokens]:
            request.drop_stale_output = True
            if request.request_id in scheduler.ledger.swapped:
                self.give_up(scheduler.jobs[request.request_id])
        manager = scheduler.kv_cache_manager
        manager.evict_blocks(set(range(manager.block_pool.num_gpu_blocks)))

    def _holds(self, request: Request, blocks: Collection[int]) -> bool:
        ids = self._scheduler.kv_cache_manager.get_block_ids(request.request_id)[0]
        return not set(blocks).isdisjoint(ids)

    def _not_resumed(self) -> list[Request]:
        """Requests that have come back from the host, or are about to, and have not run since."""
        scheduler, returned = self._scheduler, self._swaps.copies.returned
        held = scheduler.kv_holding_waiting
        return [request for request in held if scheduler.jobs[request.request_id] in returned]
