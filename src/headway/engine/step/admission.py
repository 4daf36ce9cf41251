"""Predicts whether vLLM would start a waiting request, without starting it."""

from __future__ import annotations

from collections.abc import Sequence

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.request import Request, RequestStatus

from headway.core.fill import brings_last_token, starts_whole
from headway.core.job import Job, JobState
from headway.core.plan import Reason, StepPlan
from headway.core.prefix_watch import PrefixWatch
from headway.engine.step.adapters import AdapterSlots
from headway.engine.step.ports import StepPort, Swaps


class Admission:
    """Read-only questions about a scheduler's waiting requests."""

    def __init__(self, engine: StepPort) -> None:
        self._engine = engine
        lora = engine.lora_config
        self.adapters = None if lora is None else AdapterSlots(lora.max_loras)
        groups = engine.kv_cache_config.kv_cache_groups
        self.one_block_for_all_layers = len(groups) == 1 and isinstance(
            groups[0].kv_cache_spec, FullAttentionSpec
        )

    def not_ready(self, request: Request) -> Reason | None:
        """Why vLLM would skip this request now; None if it would try to start it. O(1).

        A request whose grammar failed to compile counts as ready: vLLM ends it only when its turn comes.
        """
        if request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
            grammar = request.structured_output_request and request.structured_output_request.grammar
            if grammar is None:
                return Reason.GRAMMAR
        elif request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
            if request.request_id not in self._engine.finished_recving_kv_req_ids:
                return Reason.REMOTE_KV
        elif request.status == RequestStatus.WAITING_FOR_STREAMING_REQ:
            return Reason.HELD
        if request.num_stale_output_tokens and not request.drop_stale_output:
            return Reason.STALE_OUTPUT
        transfers = self._engine.transfers
        if transfers is not None and transfers.is_undecided(request):
            return Reason.REMOTE_LOOKUP
        swaps = self._engine.swaps
        return None if swaps is None else self._not_back(request, swaps)

    def _not_back(self, request: Request, swaps: Swaps) -> Reason | None:
        """Why a swapped request cannot come back yet."""
        job = self._engine.jobs[request.request_id]
        return swaps.copies.ready(job) if job.state is JobState.SWAPPED else None

    def misfit(self, request: Request) -> Reason | None:
        """Which memory check an admission would fail now; None if the whole sequence fits.

        O(1) if the request would fit even with nothing cached, else a prefix-cache lookup: O(blocks of the request).
        """
        engine = self._engine
        if self._surely_fits(request):
            return None
        needed, num_cached = self._needed(request)
        free, watermark = self._free_blocks(), self._watermark()
        loaded_tokens = self._loaded_beside(request, num_cached)
        if loaded_tokens is not None:
            filled = needed - self._blocks_past(request, loaded_tokens)
            reserved = engine._inflight_prefill_reserved_blocks() + engine._spec_decode_step_blocks
            if filled + watermark + reserved > free:
                return Reason.BLOCKS
        if needed > free:
            return Reason.ISL if engine.scheduler_reserve_full_isl else Reason.BLOCKS
        return Reason.WATERMARK if needed + watermark > free else None

    def _needed(self, request: Request) -> tuple[int, int]:
        """Free blocks that vLLM would take for the whole request, and its cached tokens."""
        engine = self._engine
        manager = engine.kv_cache_manager
        if request.num_computed_tokens:  # loaded by a connector: the request holds their blocks already
            blocks, num_cached = manager.empty_kv_cache_blocks, request.num_computed_tokens
        else:
            blocks, num_cached, *_ = manager.get_computed_blocks(request)
        needed: int = manager.coordinator.get_num_blocks_to_allocate(
            request_id=request.request_id,
            num_tokens=min(request.num_tokens, engine.max_model_len),
            new_computed_blocks=blocks.blocks,
            num_encoder_tokens=0,
            total_computed_tokens=num_cached,
            num_local_computed_tokens=num_cached,
            num_tokens_main_model=request.num_tokens,
            apply_admission_cap=engine.scheduler_reserve_full_isl,
            prefill_end=max(request.num_prompt_tokens, request.num_tokens - 1),
        )
        return needed, num_cached

    def _free_blocks(self) -> int:
        free: int = self._engine.kv_cache_manager.block_pool.get_num_free_blocks()
        return free

    def _watermark(self) -> int:
        """Blocks that an admission leaves free."""
        manager = self._engine.kv_cache_manager
        return manager.watermark_blocks if self._engine.running else 0

    def _surely_fits(self, request: Request) -> bool:
        """Whether the whole request fits even if nothing is cached. False while a connector may load KV for it."""
        engine = self._engine
        if not self.one_block_for_all_layers or engine.jobs[request.request_id].state is JobState.SWAPPED:
            return False
        if engine.transfers is not None and engine.transfers.loads_beside(request):
            return False
        most: int = -(-request.num_tokens // engine.block_size) + engine.kv_cache_manager.watermark_blocks
        return most <= self._free_blocks()

    def too_large(self, request: Request) -> str | None:
        """Why a request will never fit the KV cache; None if it may. Where layers forget tokens every request may."""
        engine = self._engine
        needed = engine.view.blocks(request.num_tokens)
        total = engine.kv_cache_manager.block_pool.num_gpu_blocks - 1
        if needed <= total or not self.one_block_for_all_layers:
            return None
        return f"headway: needs {needed} KV blocks, the engine has {total}"

    def _blocks_past(self, request: Request, loaded_tokens: int) -> int:
        """Blocks of a request's sequence after those of its loaded leading tokens; they are taken later."""
        size = self._engine.block_size
        past: int = -(-request.num_tokens // size) - -(-loaded_tokens // size)
        return past

    def _loaded_beside(self, request: Request, num_cached: int) -> int | None:
        """Leading tokens that an asynchronous load would bring; None if the request would start without a load.

        vLLM begins such a load only if there is room for all unfinished prompts.
        """
        engine = self._engine
        if engine.transfers is not None:
            tokens = engine.transfers.loads_beside(request)
            return num_cached + tokens if tokens else None
        job = engine.jobs[request.request_id]
        if job.state is not JobState.SWAPPED or engine.swaps is None or engine.swaps.copies.serial:
            return None
        return job.num_computed_tokens if num_cached < job.num_computed_tokens else None

    def lacks_blocks(self, request: Request, most_tokens: int) -> bool:
        """Whether a running request that got no token, with `most_tokens` left in the step, lacks blocks for them."""
        engine = self._engine
        manager = engine.kv_cache_manager
        needed = request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens
        num_tokens = request.num_computed_tokens + min(needed, most_tokens)
        blocks: int = manager.coordinator.get_num_blocks_to_allocate(
            request_id=request.request_id,
            num_tokens=min(num_tokens + engine.num_lookahead_tokens, engine.max_model_len),
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
        engine = self._engine
        return (
            self.ready(job)
            and len(engine.ledger.residents) < engine.max_num_running_reqs
            and self.misfit(engine.requests[job.id]) is None
        )

    def ready(self, job: Job) -> bool:
        """Whether only seats and memory keep a waiting job from starting now. O(1)."""
        engine = self._engine
        request = engine.requests[job.id]
        return (
            engine._pause_state == PauseState.UNPAUSED
            and not engine.view.defers_prompts
            and self.is_queued(request)
            and self.not_ready(request) is None
            and (self.adapters is None or self.adapters.has(job))
        )

    def is_queued(self, request: Request) -> bool:
        """Whether vLLM may start a waiting request, with blocks of its own or without. O(1)."""
        engine = self._engine
        return request in engine.waiting or (
            engine.transfers is not None and request in engine.kv_holding_waiting
        )

    def missing_blocks(self, job: Job) -> int:
        """Blocks that must come free before a waiting job passes all memory checks; 0 if it passes now."""
        needed, _ = self._needed(self._engine.requests[job.id])
        return max(0, needed + self._watermark() - self._free_blocks())

    def windows(self, plan: StepPlan) -> tuple[list[Request], list[Request], Job | None]:
        """The requests that vLLM may start in this step, in order: those that hold blocks, and the others.

        With `whole_prompts`, only those that fit whole, and the first job that does not.
        """
        engine = self._engine
        admit, cut = self._whole(plan) if plan.whole_prompts else (plan.admit, None)
        ids = [job.id for job in admit]
        holding = engine.kv_holding_waiting.find(ids) if engine.transfers is not None else []
        return holding, engine.waiting.find(ids), cut

    def _whole(self, plan: StepPlan) -> tuple[Sequence[Job], Job | None]:
        """The leading jobs of `admit` whose prompts fit whole, and the first that does not."""
        room = plan.token_budget - sum(self._need(plan, job) for job in plan.run)
        fitting: list[Job] = []
        swaps = self._engine.swaps
        for job in plan.admit:
            request = self._engine.requests[job.id]
            if job.state is JobState.WAITING and self.not_ready(request) is None:
                uncomputed = job.num_tokens - request.num_computed_tokens
                if not starts_whole(uncomputed, room, plan.token_budget):
                    return fitting, job
                room -= uncomputed
            elif job.state is JobState.SWAPPED and swaps is not None and swaps.copies.serial:
                room -= job.num_tokens - job.num_computed_tokens
            fitting.append(job)
        return fitting, None

    def _need(self, plan: StepPlan, job: Job) -> int:
        """Tokens that vLLM would grant a resident of `run` within any budget: `uncomputed_tokens`, and drafts.

        Computed from the request: the job's limit may be a hint that vLLM does not know.
        """
        request = self._engine.requests[job.id]
        computed: int = request.num_computed_tokens
        in_flight: int = request.num_output_placeholders
        if in_flight and brings_last_token(
            in_flight, computed, request.num_prompt_tokens + request.max_tokens
        ):
            return 0
        need: int = request.num_tokens_with_spec + in_flight - computed
        return min(need, plan.chunk_cap.get(job, need))

    def prefix_watch(self) -> PrefixWatch | None:
        """Make a watch over what the prefix cache holds of waiting jobs; None if the policy does not use one.

        None too if layers keep KV in several groups of blocks, or hash blocks of another size than they hold: then a
        block does not imply all blocks before it.
        """
        engine, manager = self._engine, self._engine.kv_cache_manager
        pool, requests = manager.block_pool, engine.requests
        whole = self.one_block_for_all_layers and pool.hash_block_size == engine.block_size
        if not (engine.guard.policy.uses_prefixes and manager.enable_caching and whole):
            return None
        only_group = [0]

        def finds(job: Job, index: int) -> bool:
            request = requests[job.id]
            if request.skip_reading_prefix_cache or index >= len(request.block_hashes):
                return False
            return pool.get_cached_block(request.block_hashes[index], only_group) is not None

        def changed(job: Job) -> None:
            engine.guard.touch(job)  # looked up at each call, since a guard may be replaced

        return PrefixWatch(finds, engine.block_size, changed)
