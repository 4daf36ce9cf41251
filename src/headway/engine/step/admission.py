"""What vLLM would say to starting a waiting request, asked without starting it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.request import Request, RequestStatus

from headway.core.fill import brings_last_token, starts_whole
from headway.core.job import Job, JobState
from headway.core.plan import Reason, StepPlan


class Admission:
    """Read-only questions about a scheduler's waiting requests; it changes nothing."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.cut: Job | None = None
        self.over_adapters: list[Job] = []
        self._adapters: set[int] = set()
        groups = scheduler.kv_cache_config.kv_cache_groups
        self.one_block_for_all_layers = len(groups) == 1 and isinstance(
            groups[0].kv_cache_spec, FullAttentionSpec
        )

    def not_ready(self, request: Request) -> Reason | None:
        """Why vLLM would pass this request over now; None when it would try to start it. O(1).

        One whose grammar failed to compile is ready: only when its turn to start has come does vLLM end it.
        """
        if request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
            grammar = request.structured_output_request and request.structured_output_request.grammar
            if grammar is None:
                return Reason.GRAMMAR
        elif request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
            if request.request_id not in self._scheduler.finished_recving_kv_req_ids:
                return Reason.REMOTE_KV
        elif request.status == RequestStatus.WAITING_FOR_STREAMING_REQ:
            return Reason.HELD
        if request.num_stale_output_tokens and not request.drop_stale_output:
            return Reason.STALE_OUTPUT
        transfers = self._scheduler.transfers
        if transfers is not None and transfers.is_undecided(request):
            return Reason.REMOTE_LOOKUP
        return self._not_back(request) if self._scheduler.swaps is not None else None

    def _not_back(self, request: Request) -> Reason | None:
        """Why a swapped request cannot come back yet."""
        job = self._scheduler.jobs[request.request_id]
        ready: Reason | None = None
        if job.state is JobState.SWAPPED:
            ready = self._scheduler.swaps.copies.ready(job)
        return ready

    def misfit(self, request: Request) -> Reason | None:
        """Which memory check an admission would fail now; None when its whole sequence fits.

        O(1) where it would even if nothing of it were found, else a prefix-cache lookup: O(blocks of the request).
        """
        scheduler = self._scheduler
        if self._surely_fits(request):
            return None
        needed, num_cached = self._needed(request)
        free, watermark = self._free_blocks(), self._watermark()
        loaded_tokens = self._loaded_beside(request, num_cached)
        if loaded_tokens is not None:
            filled = needed - self._blocks_past(request, loaded_tokens)
            reserved = scheduler._inflight_prefill_reserved_blocks() + scheduler._spec_decode_step_blocks
            if filled + watermark + reserved > free:
                return Reason.BLOCKS
        if needed > free:
            return Reason.ISL if scheduler.scheduler_reserve_full_isl else Reason.BLOCKS
        return Reason.WATERMARK if needed + watermark > free else None

    def _needed(self, request: Request) -> tuple[int, int]:
        """Blocks that vLLM would take from the free ones for a whole request, and its tokens found in the cache."""
        scheduler = self._scheduler
        manager = scheduler.kv_cache_manager
        if request.num_computed_tokens:  # a connector has loaded these; their blocks are the request's own
            blocks, num_cached = manager.empty_kv_cache_blocks, request.num_computed_tokens
        else:
            blocks, num_cached, *_ = manager.get_computed_blocks(request)
        needed: int = manager.coordinator.get_num_blocks_to_allocate(
            request_id=request.request_id,
            num_tokens=min(request.num_tokens, scheduler.max_model_len),
            new_computed_blocks=blocks.blocks,
            num_encoder_tokens=0,
            total_computed_tokens=num_cached,
            num_local_computed_tokens=num_cached,
            num_tokens_main_model=request.num_tokens,
            apply_admission_cap=scheduler.scheduler_reserve_full_isl,
            prefill_end=max(request.num_prompt_tokens, request.num_tokens - 1),
        )
        return needed, num_cached

    def _free_blocks(self) -> int:
        free: int = self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return free

    def _watermark(self) -> int:
        """Blocks that an admission leaves free beside others."""
        manager = self._scheduler.kv_cache_manager
        return manager.watermark_blocks if self._scheduler.running else 0

    def _surely_fits(self, request: Request) -> bool:
        """Whether there are blocks for all of a request that nothing is loaded for, found on the device or not."""
        scheduler = self._scheduler
        if not self.one_block_for_all_layers or scheduler.jobs[request.request_id].state is JobState.SWAPPED:
            return False
        if scheduler.transfers is not None and scheduler.transfers.loads_beside(request):
            return False
        most: int = (
            -(-request.num_tokens // scheduler.block_size) + scheduler.kv_cache_manager.watermark_blocks
        )
        return most <= self._free_blocks()

    def _blocks_past(self, request: Request, loaded_tokens: int) -> int:
        """Blocks of a request's sequence that a load of its leading tokens does not fill, and that are taken later."""
        size = self._scheduler.block_size
        past: int = -(-request.num_tokens // size) - -(-loaded_tokens // size)
        return past

    def _loaded_beside(self, request: Request, num_cached: int) -> int | None:
        """The leading tokens that a load beside the steps would bring; None if the request would start without one.

        vLLM begins such a load only if that leaves room for all unfinished prompts.
        """
        scheduler = self._scheduler
        if scheduler.transfers is not None:
            tokens: int = scheduler.transfers.loads_beside(request)
            return num_cached + tokens if tokens else None
        job = scheduler.jobs[request.request_id]
        if job.state is not JobState.SWAPPED or scheduler.swaps.copies.serial:
            return None
        computed: int = job.num_computed_tokens
        return computed if num_cached < computed else None

    def lacks_blocks(self, request: Request, most_tokens: int) -> bool:
        """Whether a running request that got no token, of `most_tokens` that were left, finds no blocks for them."""
        scheduler = self._scheduler
        manager = scheduler.kv_cache_manager
        needed = request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens
        num_tokens = request.num_computed_tokens + min(needed, most_tokens)
        blocks: int = manager.coordinator.get_num_blocks_to_allocate(
            request_id=request.request_id,
            num_tokens=min(num_tokens + scheduler.num_lookahead_tokens, scheduler.max_model_len),
            new_computed_blocks=manager.empty_kv_cache_blocks.blocks,
            num_encoder_tokens=0,
            total_computed_tokens=request.num_computed_tokens,
            num_local_computed_tokens=request.num_computed_tokens,
            num_tokens_main_model=num_tokens,
            prefill_end=max(request.num_prompt_tokens, request.num_tokens - 1),
        )
        return blocks > self._free_blocks()

    def admissible(self, job: Job) -> bool:
        """Whether a waiting job would start in this step if it were first and the budget were free."""
        scheduler = self._scheduler
        return (
            self.ready(job)
            and len(scheduler.ledger.residents) < scheduler.max_num_running_reqs
            and self.misfit(scheduler.requests[job.id]) is None
        )

    def ready(self, job: Job) -> bool:
        """Whether nothing but seats and memory keeps a waiting job from starting now. O(1)."""
        scheduler = self._scheduler
        request = scheduler.requests[job.id]
        return (
            scheduler._pause_state == PauseState.UNPAUSED
            and not scheduler.defers_prefills
            and self.is_queued(request)
            and self.not_ready(request) is None
            and self._has_adapter(job)
        )

    def is_queued(self, request: Request) -> bool:
        """Whether vLLM may start a request that waits, with blocks of its own or without. O(1)."""
        scheduler = self._scheduler
        return request in scheduler.waiting or (
            scheduler.transfers is not None and request in scheduler.kv_holding_waiting
        )

    def look_at_adapters(self, ran: Iterable[Job]) -> None:
        """Note which LoRA adapters ran in the last step, before a plan asks who is ready. O(jobs of that step)."""
        self._adapters = {job.lora_id for job in ran if job.lora_id and job.state is JobState.RESIDENT}

    def _has_adapter(self, job: Job) -> bool:
        """Whether a waiting job's LoRA adapter ran in the last step, or could join those that did.

        vLLM passes over whoever brings one too many; nobody is to pause, or to lose its KV, for such a one.
        """
        if not job.lora_id or job.lora_id in self._adapters:
            return True
        limit: int = self._scheduler.lora_config.max_loras
        return len(self._adapters) < limit

    def missing_blocks(self, job: Job) -> int:
        """Blocks that have to come free before a waiting job passes all memory checks; 0 if it would now."""
        needed, _ = self._needed(self._scheduler.requests[job.id])
        return max(0, needed + self._watermark() - self._free_blocks())

    def within_adapters(self, run: Sequence[Job]) -> Sequence[Job]:
        """`run` without the jobs whose LoRA adapter would be one too many in a step (invariant 11).

        vLLM asserts that running requests span at most `max_loras` adapters; pauses let more be resident.
        The jobs left out are in `over_adapters` until the next step.
        """
        limit = self._scheduler.lora_config.max_loras
        adapters: set[int] = set()
        self.over_adapters = []
        for job in run:
            if not job.lora_id or job.lora_id in adapters:
                continue
            if len(adapters) < limit:
                adapters.add(job.lora_id)
            else:
                self.over_adapters.append(job)
        over = set(self.over_adapters)
        return [job for job in run if job not in over] if over else run

    def windows(self, plan: StepPlan) -> tuple[list[Request], list[Request]]:
        """The requests that vLLM may start in this step, in order: first those that hold blocks, then the others.

        With `whole_prompts` only those that fit whole.
        """
        scheduler = self._scheduler
        self.cut = None
        ids = [job.id for job in (self._whole(plan) if plan.whole_prompts else plan.admit)]
        holding = scheduler.kv_holding_waiting.find(ids) if scheduler.transfers is not None else []
        return holding, scheduler.waiting.find(ids)

    def _whole(self, plan: StepPlan) -> list[Job]:
        """The leading jobs of `admit` whose prompts fit whole; `cut` is the first that does not."""
        room = plan.token_budget - sum(self._need(plan, job) for job in plan.run)
        fitting: list[Job] = []
        for job in plan.admit:
            request = self._scheduler.requests[job.id]
            if job.state is JobState.WAITING and self.not_ready(request) is None:
                uncomputed = job.num_tokens - request.num_computed_tokens
                if not starts_whole(uncomputed, room, plan.token_budget):
                    self.cut = job
                    break
                room -= uncomputed
            elif job.state is JobState.SWAPPED and self._scheduler.swaps.copies.serial:
                room -= job.num_tokens - job.num_computed_tokens
            fitting.append(job)
        return fitting

    def _need(self, plan: StepPlan, job: Job) -> int:
        """Tokens that vLLM would grant a resident of `run` within any budget: `uncomputed_tokens`, and drafts.

        Of the request and not of the job, whose limit may be a hint that vLLM knows nothing of.
        """
        request = self._scheduler.requests[job.id]
        computed: int = request.num_computed_tokens
        in_flight: int = request.num_output_placeholders
        if in_flight and brings_last_token(
            in_flight, computed, request.num_prompt_tokens + request.max_tokens
        ):
            return 0
        need: int = request.num_tokens_with_spec + in_flight - computed
        return min(need, plan.chunk_cap.get(job, need))
