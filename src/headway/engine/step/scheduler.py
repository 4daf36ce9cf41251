"""The plug-in: vLLM's scheduler, shaped by a policy before each step and compared with its plan after."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.request import Request, RequestStatus

from headway.core.fill import paused_by
from headway.core.host_copies import HostCopies
from headway.core.job import Job, JobState
from headway.core.ledger import LEFT_AS, Ledger
from headway.core.plan import Departure, Fate, Reason, StepPlan
from headway.core.record import Outcome
from headway.core.view import StepView
from headway.engine.kv.transfers import transfers_of
from headway.engine.lengths.in_engine import engine_lengths_of
from headway.engine.settings import EngineSettings
from headway.engine.step.admission import Admission
from headway.engine.step.chunk_ends import end_between_items
from headway.engine.step.counters import Counters
from headway.engine.step.explainer import NOT_FOLLOWED
from headway.engine.step.farewells import Farewells
from headway.engine.step.following import Following
from headway.engine.step.guard import GuardedPolicy
from headway.engine.step.intake import ArrivalClock, take_in
from headway.engine.step.outcomes import FilledStep, Outcomes
from headway.engine.step.queue import WindowQueue
from headway.engine.step.rescue import Rescue
from headway.engine.step.sampled import follow_sampled
from headway.engine.step.steady_plan import SteadyPlan
from headway.engine.step.step_check import check_step
from headway.engine.step.step_model import lesson, step_time_model
from headway.engine.step.stop_strings import stopped_among
from headway.engine.step.streamed_input import StreamedInput
from headway.engine.step.watchdog import Remedy
from headway.engine.vllm.seams import METRICS, SWAPS, works
from headway.policies.presets import build_policy
from headway.predict.steps.learned import LearnedCost, StepClock

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.lora.request import LoRARequest
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput

    from headway.engine.kv.scheduler_side import KvSwaps
    from headway.engine.lengths.in_engine import EngineLengths


STATS_INTERVAL_S = 0.5
"""How often the totals' growth is sent to the process that serves metrics; the last one always is."""

_ENDED_AS = {
    RequestStatus.FINISHED_STOPPED: Outcome.FINISHED,
    RequestStatus.FINISHED_LENGTH_CAPPED: Outcome.FINISHED,
    RequestStatus.FINISHED_REPETITION: Outcome.FINISHED,
    RequestStatus.FINISHED_IGNORED: Outcome.FAILED,
    RequestStatus.FINISHED_ERROR: Outcome.FAILED,
    RequestStatus.FINISHED_ABORTED: Outcome.CANCELLED,
}


class PolicyScheduler(Scheduler):  # type: ignore[misc]
    """vLLM's scheduler under a policy: view -> plan -> shaped `schedule()` -> outcome -> observe.

    All up to the shaped `schedule()` holds up the step; what follows is done while the workers compute it.

    vLLM's own code grants tokens, allocates blocks and talks to the workers; this class only decides in
    which order it finds the requests, which of them, and with how many tokens at most. `clock` is the one
    clock of its decisions, in seconds; `wall_clock` serves only to read how old an arriving request is. A run
    without a model, or against the simulator, puts its own virtual time in both places.
    """

    clock: Callable[[], float] = staticmethod(time.monotonic)
    wall_clock: Callable[[], float] = staticmethod(time.time)

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        settings = EngineSettings.from_additional_config(vllm_config.additional_config)
        self.settings = settings
        self.counters = Counters()
        self.ledger = Ledger()
        kv_blocks = self.kv_cache_manager.block_pool.num_gpu_blocks - 1
        self.cost = LearnedCost(
            steps=step_time_model(vllm_config), kv_tokens=kv_blocks * vllm_config.cache_config.block_size
        )
        priority_first = self.scheduler_config.policy == "priority"
        policy = build_policy(settings.preset(), self.cost, priority_first=priority_first)
        steady = SteadyPlan() if self._one_token_at_a_time() else None
        self.guard = GuardedPolicy(policy, self.ledger, self.counters, steady, priority_first=priority_first)
        self.waiting = WindowQueue()
        self.kv_holding_waiting = WindowQueue()
        self.admission = Admission(self)
        self.jobs: dict[str, Job] = {}
        self._default_slo = settings.default_slo()
        self._arrivals = ArrivalClock()
        self.lengths = engine_lengths_of(self)
        self.outcomes = Outcomes(self)
        self.following = Following(self)
        steps, explainer = self.cost.steps, self.following.explainer
        self.step_clock = StepClock(steps if explainer is None else explainer.judging(steps))
        self._rescue = Rescue(self)
        self._caps: dict[str, int] = {}
        self._hidden_adapters: list[tuple[Request, LoRARequest]] = []
        self._stats_due_s = 0.0
        self.seats_planned = 0
        self.admission_closed = False
        self.defers_prefills = False
        self.preempted: dict[Job, Fate] = {}
        self._planned_fate: Fate | None = None
        self._filled: FilledStep | None = None
        self.shaped_plan = StepPlan()
        self.not_offloaded: dict[Job, Reason] = {}
        self._departing: dict[str, Departure] = {}
        self._stopped: Collection[str] = ()
        self._farewells = Farewells()
        self._streamed_input = StreamedInput()
        token_budget, active_reqs = self._stock_limits()
        self.view = StepView(
            total_blocks=kv_blocks,
            watermark_blocks=self.kv_cache_manager.watermark_blocks,
            block_size=self.block_size,
            max_run=min(settings.batch_width or active_reqs, active_reqs),
            max_resident=self.max_num_running_reqs,
            max_tokens=token_budget,
            tokens_a_decode=1 + self.num_spec_tokens,
            graphed_tokens=steps.graphed_tokens,
            admissible=self.admission.admissible,
            ready=self.admission.ready,
            missing_blocks=self.admission.missing_blocks,
        )
        self.swaps = self._swaps()
        self.transfers = transfers_of(self)
        if self.swaps is not None:
            self.view.host_total_blocks = self.swaps.copies.host.num_blocks
            self.view.uncopied_blocks = self.swaps.copies.uncopied_blocks
            self.view.unsent_blocks = self.swaps.copies.unsent_blocks

    def _swaps(self) -> KvSwaps | None:
        """What swaps KV, where there is a connector and vLLM has all that this takes."""
        if self.connector is None or not works(SWAPS):
            return None
        from headway.engine.kv.scheduler_side import swaps_of  # its module needs what vLLM may not have

        return swaps_of(self, serial=self.guard.policy.serial_copies)

    def _one_token_at_a_time(self) -> bool:
        """Whether a step begins when the one before is over, and brings no drafts."""
        pipelined = self.parallel_config.pipeline_parallel_size > 1
        return not (self.scheduler_config.async_scheduling or pipelined or self.num_spec_tokens)

    def _stock_limits(self) -> tuple[int, int]:
        """What vLLM itself would set as tokens a step and requests running; a step may narrow both."""
        config = self.scheduler_config
        tokens, active = config.max_num_scheduled_tokens, config.max_num_active_seqs
        return (
            config.max_num_batched_tokens if tokens is None else tokens,
            self.max_num_running_reqs if active is None else active,
        )

    # ---- one step ----------------------------------------------------------------------------------

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Plan, shape, let vLLM fill. Returns vLLM's own output.

        A plan made again needs no shape: all residents decode, in vLLM's own order, and nobody waits.
        """
        self._catch_up()
        started = time.perf_counter()
        now_s = self.clock()
        if self.lengths is not None:
            self._follow_predictions(self.lengths)
        self._settle(now_s)
        self.defers_prefills = (throttle_prefills or self._between_prefills()) and self._may_defer_prefills()
        plan = self._plan(self._look(now_s))
        repeated = self.guard.repeated and plan.run is self.ledger.residents
        if not repeated:
            self._depart(plan)
            self._shape(plan)
        if self.defers_prefills and not throttle_prefills:
            self._release_prefills()
        shaped = len(self.running)
        delegated = time.perf_counter()
        try:
            output = super().schedule(throttle_prefills)
        finally:
            if not repeated:
                self._unshape()
        self.counters.vllm_schedule_s += time.perf_counter() - delegated
        if self.transfers is not None:
            self.transfers.filled()
        self._filled = FilledStep(plan, output, shaped, now_s, self.clock(), repeated=repeated)
        self.counters.scheduler_s += time.perf_counter() - started
        return output

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> Any:
        """Follow the step: vLLM asks for this when the workers have begun it, so it keeps nobody waiting."""
        self._catch_up()
        return super().get_grammar_bitmask(scheduler_output)

    def _catch_up(self) -> None:
        """Follow the step that was filled last, once: before all that looks at jobs or changes them."""
        filled, self._filled = self._filled, None
        if filled is None:
            return
        started = time.perf_counter()
        outcome = self.outcomes.of(filled)
        self.following.stepped(outcome)
        if self.settings.check:
            check_step(outcome, self)
        self._rescue.follow(outcome)
        # A step that waits for copies or loads, or after which vLLM (from 0.33 on) makes no drafts, is unlike others.
        unlike = (
            filled.output.has_sync_kv_loads
            or (self.swaps is not None and self.swaps.step_waits)
            or getattr(filled.output, "skip_drafts", False)
        )
        learned = None if unlike else lesson(outcome, self.step_clock, alike=self.outcomes.alike)
        self.step_clock.dispatched(learned, filled.dispatched_s)
        self.step_clock.learn()
        self.counters.follow_s += time.perf_counter() - started

    def _settle(self, now_s: float) -> None:
        """Follow preemptions vLLM made between steps (a prefix cache reset, for one)."""
        if self.preempted:
            self.view.residents = self.ledger.residents
            self.following.moved(self.outcomes.between_steps(now_s))

    def _look(self, now_s: float) -> StepView:
        """What there is for the policy to see before this step."""
        view = self.view
        view.now_s = now_s
        view.defers_prompts = self.defers_prefills
        view.residents = self.ledger.residents
        view.waiting = self.ledger.waiting.values()
        if self.scheduler_config.async_scheduling:
            for job in view.residents:
                job.num_output_placeholders = self.requests[job.id].num_output_placeholders
        view.free_blocks = self.kv_cache_manager.block_pool.get_num_free_blocks()
        if self.swaps is not None:
            view.swapped = self.ledger.swapped.values()
            view.restoring = self.swaps.copies.restoring
            view.returned = self.swaps.copies.returned
            view.blocks_coming_free = self.swaps.device.coming_free
            view.host_free_blocks = self.swaps.copies.host.free_blocks
        if self.transfers is not None:
            self.transfers.look()
        return view

    def _plan(self, view: StepView) -> StepPlan:
        """What the policy wants of this step, within what the engine can do at all.

        A job whose KV a connector has loaded comes before others that wait, under every policy, as in vLLM: it holds
        blocks, the policy chose it when its load began, and others may wait for those blocks.
        """
        if self.lora_config is not None:
            self.admission.look_at_adapters(self.outcomes.tokens)
        plan = self.guard.plan(view)
        if self._rescue.remedy is Remedy.RECOMPUTE_PAUSED:
            paused = paused_by(plan, self.ledger.residents)
            plan.preempt = {**plan.preempt, **dict.fromkeys(paused, Fate.RECOMPUTE)}
        if self.lora_config is not None:
            plan.run = self.admission.within_adapters(plan.run)
        if self.transfers is not None and not plan.preempt:
            loaded = [job for job in self.transfers.loaded() if job not in plan.leave]
            if loaded:
                plan.admit = self._loaded_first(loaded, plan)
        return plan

    def _between_prefills(self) -> bool:
        """Whether the last step with prompts is fewer than `--prefill-schedule-interval` steps ago.

        vLLM 0.32 spaces prompts only where data-parallel engines keep pace, and asks for that by `throttle_prefills`.
        """
        interval: int = getattr(self, "local_prefill_interval", 1)
        return interval > 1 and self.num_executed_steps + 1 - self.last_prefill_step < interval

    def _loaded_first(self, loaded: list[Job], plan: StepPlan) -> list[Job]:
        """The jobs that a plan admits, behind those whose KV a connector has loaded.

        One of these that does not fit yet ends admission, as in vLLM. A plan that pauses residents counts on the jobs
        that it admits, so then such a one is left out.
        """
        others = [job for job in plan.admit if job not in loaded]
        if len(plan.run) < len(self.ledger.residents):
            loaded = [job for job in loaded if self.admission.misfit(self.requests[job.id]) is None]
        return [*loaded, *others]

    def _follow_predictions(self, lengths: EngineLengths) -> None:
        """Let policies know of the lengths that were predicted beside the last steps."""
        for request_id, estimate in lengths.made():
            job = self.jobs.get(request_id)
            if job is not None:
                job.predicted_length = estimate
                self.guard.touch(job)

    def _may_defer_prefills(self) -> bool:
        """Whether vLLM defers prompts in a step for which that is asked: it has decodes and no backlog."""
        return not self.prefill_capacity_bound and any(
            not request.is_prefill_chunk for request in self.running
        )

    def _release_prefills(self) -> None:
        """Let this step compute prompts if the plan pauses all decodes.

        An empty step would not count towards the interval: prompts would be deferred for ever.
        """
        caps = self._caps
        decodes = (request for request in self.running if not request.is_prefill_chunk)
        if all(caps.get(request.request_id) == 0 for request in decodes):
            self.prefill_capacity_bound = True  # then vLLM defers none; it sets it anew after filling
            self.defers_prefills = False

    def _depart(self, plan: StepPlan) -> None:
        """End the requests that leave; their clients hear of it with the next output."""
        for job, departure in plan.leave.items():
            self.dismiss(job.id, RequestStatus.FINISHED_ABORTED, f"headway:{departure}", departure)

    def dismiss(
        self, request_id: str, status: RequestStatus, reason: str, departure: Departure | None = None
    ) -> None:
        """End one request here and now, and queue its last output."""
        if departure is not None:
            self._departing[request_id] = departure
            self.counters.departures[departure] += 1
        for request in super().finish_requests(request_id, status):
            self._farewells.add(request, reason, failed=status is RequestStatus.FINISHED_ERROR)

    # ---- shaping -----------------------------------------------------------------------------------

    def _shape(self, plan: StepPlan) -> None:
        """Put vLLM's queues, caps and budget so that its own loops carry out the plan."""
        paused = paused_by(plan, self.ledger.residents)
        self._caps = {job.id: cap for job, cap in plan.chunk_cap.items()}
        self._caps.update((job.id, 0) for job in paused)
        self.counters.pauses += len(paused)
        if self._caps:
            # On the instance, for this step alone: vLLM calls it for every grant, and most steps cap nobody.
            self._reserve_prefill_lookahead = self._capped
        self.shaped_plan = plan
        kept = len(plan.run) + len(paused)
        self.admission_closed = False
        resumable = self._line_up(plan, paused)
        self._preempt_planned(plan)
        self._offload(plan)
        if self.lora_config is not None:
            self._hide_adapters(paused)
        holding, waiting = self.admission.windows(plan)
        self.kv_holding_waiting.show([*resumable, *holding])
        self.waiting.show(waiting)
        self.seats_planned = max(0, min(self.view.max_run - len(plan.run), self.view.max_resident - kept))
        self.max_num_active_reqs = len(self.running) + len(resumable) + self.seats_planned
        self.max_num_scheduled_tokens = plan.token_budget

    def _line_up(self, plan: StepPlan, paused: list[Job]) -> list[Request]:
        """Put vLLM's running requests in the plan's order; returns those of `run` that have come back since.

        These vLLM keeps among the waiting, and resumes after the running ones.
        """
        requests = self.requests
        if self.swaps is None:
            if plan.run is not self.ledger.residents:
                self.running = [requests[job.id] for job in (*plan.run, *paused)]
            return []
        returned, restoring = self.swaps.copies.returned, self.swaps.copies.restoring
        self.running = [requests[job.id] for job in (*plan.run, *paused) if job not in returned]
        return [requests[job.id] for job in plan.run if job in returned and job not in restoring]

    def _hide_adapters(self, paused: Iterable[Job]) -> None:
        """Let paused requests take no LoRA slot: vLLM 0.33 counts the adapters of all its running requests."""
        for request in (self.requests[job.id] for job in paused if job.lora_id):
            self._hidden_adapters.append((request, request.lora_request))
            request.lora_request = None

    def _preempt_planned(self, plan: StepPlan) -> None:
        for job, fate in plan.preempt.items():
            self.counters.planned_preemptions += 1
            self._preempt(self.requests[job.id], fate)

    def _offload(self, plan: StepPlan) -> None:
        """Start the copies of paused requests that the plan wants on the host; why not, where that cannot be."""
        self.not_offloaded = {}
        for job in plan.offload:
            refused = Reason.HOST_BLOCKS if self.swaps is None else self._copy_ahead(self.swaps.copies, job)
            if refused is not None:
                self.not_offloaded[job] = refused

    def _copy_ahead(self, copies: HostCopies, job: Job) -> Reason | None:
        """Start a paused request's copy; why not, where that cannot be. One that the host has needs none."""
        before = len(copies.started)
        refused = copies.offload(job)
        self.counters.offloads += len(copies.started) - before
        return refused

    @property
    def short_of_blocks(self) -> bool:
        """Whether the step being filled has run out of blocks."""
        return self.admission_closed or len(self.preempted) > len(self.shaped_plan.preempt)

    def take_seat(self) -> None:
        """A request that was admitted has to wait for its KV: it takes a seat, although vLLM counts none."""
        self.max_num_active_reqs -= 1

    def close_admission(self) -> None:
        """Let vLLM start or resume nobody more in this step, which ran out of blocks that copies will free."""
        self.admission_closed = True
        self.max_num_active_reqs = 0

    def _unshape(self) -> None:
        self.waiting.close()
        self.kv_holding_waiting.close()
        if self._caps:
            self._caps = {}
            del self._reserve_prefill_lookahead
        for request, adapter in self._hidden_adapters:
            request.lora_request = adapter
        self._hidden_adapters.clear()
        self.max_num_scheduled_tokens, self.max_num_active_reqs = self._stock_limits()

    def _capped(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        """In place of vLLM's last clipping of a grant: 0 pauses a running request, k caps its chunk.

        A grant past the known tokens holds drafts, or vLLM's padding for them: it is whole or nothing.
        """
        granted: int = super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)
        cap = self._caps.get(request.request_id, granted)
        if not 0 < cap < granted:
            return min(granted, cap)
        if num_computed_tokens + granted > request.num_tokens:
            return granted
        return self._shorter(request, num_computed_tokens, granted, cap) or granted

    def _shorter(self, request: Request, num_computed_tokens: int, granted: int, cap: int) -> int:
        """A chunk of `cap` tokens, or about as many, that may end where it does; 0 if there is none.

        It may not in what a drafter reads ahead, nor inside an item that vLLM wants computed in one piece.
        """
        end = num_computed_tokens + cap
        if self.scheduler_config.disable_chunked_mm_input:
            end = end_between_items(request, num_computed_tokens, end)
        tokens = min(granted, end - num_computed_tokens)
        shorter: int = super()._reserve_prefill_lookahead(request, num_computed_tokens, tokens)
        return shorter

    def _preempt(self, request: Request, fate: Fate) -> None:
        """Preempt one that the plan names; one that has come back and not run is put back."""
        job = self.jobs[request.request_id]
        if self.swaps is not None and job in self.swaps.copies.returned:
            self.preempted[job] = self.swaps.copies.leave(job, fate)
            self.counters.put_backs += 1
            self.swaps.requests.put_back(request)
            self.swaps.copies.advance(job)
            return
        self._planned_fate = fate
        self._preempt_request(request, self.clock(), drop_stale_output=self.requires_kv_delivery)

    def _preempt_request(self, request: Request, timestamp: float, drop_stale_output: bool = False) -> None:
        """Settle what becomes of the KV, and note every preemption, planned or vLLM's own.

        vLLM's own wants blocks at once, so it swaps only where the host has all of a request's KV already.
        """
        job = self.jobs[request.request_id]
        fate, self._planned_fate = self._planned_fate, None
        if self.swaps is None:
            super()._preempt_request(request, timestamp, drop_stale_output)
            self.preempted[job] = Fate.RECOMPUTE
            return
        copies = self.swaps.copies
        # Drafts in flight may be refused after the copy: nobody knows yet how much of the KV will count.
        uncertain = bool(self.num_spec_tokens and request.num_in_flight_tokens)
        if request.skip_reading_prefix_cache or drop_stale_output or uncertain:  # not loaded again, or void
            fate = Fate.RECOMPUTE
        elif fate is None:
            fate = copies.shortage_fate(job)
        self.preempted[job] = copies.leave(job, fate)
        self.counters.refused_swaps += fate is not self.preempted[job]
        super()._preempt_request(request, timestamp, drop_stale_output)
        copies.advance(job)

    def reset_prefix_cache(self, reset_running_requests: bool = False, *args: Any, **kwargs: Any) -> bool:
        """KV from before a reset is of no use, on the host neither, nor what comes back from there."""
        self._catch_up()
        if self.swaps is None:
            reset: bool = super().reset_prefix_cache(reset_running_requests, *args, **kwargs)
            return reset
        self.swaps.requests.give_up_all(returned_too=reset_running_requests)
        with self.swaps.device.let_go():
            reset = super().reset_prefix_cache(reset_running_requests, *args, **kwargs)
        return reset

    # ---- arrivals, outputs, ends -------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Take in a request; one that cannot be served here ends at once with the reason."""
        self._catch_up()
        if request.request_id in self.jobs:
            super().add_request(request)
            return
        super().add_request(request)
        now_s = self.clock()
        is_streamed = self._streamed_input.has_part(request)
        arrival_s = self._arrivals.arrival_s(request, now_s, self.wall_clock())
        job, refusal = take_in(request, self._default_slo, arrival_s, is_streamed=is_streamed)
        self.jobs[job.id] = job
        self.following.arrived(job, now_s)
        if refusal is not None:
            self.dismiss(job.id, RequestStatus.FINISHED_ERROR, refusal)
        elif self.lengths is not None:
            self.lengths.arrived(request)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Let vLLM process a step's output, then follow it and say farewell to those who left."""
        self._catch_up()
        now_s = self.clock()
        if self.following.explainer is not None:
            self.following.explainer.now_s = now_s
        self.step_clock.finished(now_s)
        kv_output = model_runner_output.kv_connector_output
        if self.swaps is not None and kv_output is not None and kv_output.invalid_block_ids:
            self.swaps.requests.distrust(kv_output.invalid_block_ids)
            kv_output.invalid_block_ids = set()
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(
            scheduler_output, model_runner_output
        )
        follow_sampled(outputs, self, now_s)
        if self.swaps is not None:
            self._follow_copies(scheduler_output)
        elif kv_output is not None and kv_output.invalid_block_ids and self.transfers is not None:
            self.transfers.failed()
        self._farewells.deliver(outputs)
        return outputs

    def _follow_copies(self, scheduler_output: SchedulerOutput) -> None:
        """Host copies of requests that have run are of no use; swapped ones no longer in flight are copied."""
        assert self.swaps is not None
        copies, jobs = self.swaps.copies, self.jobs
        if not (copies.awaited or self.ledger.swapped):
            return
        for ran in filter(None, map(jobs.get, scheduler_output.num_scheduled_tokens)):
            copies.ran(ran)
            if ran.state is JobState.SWAPPED:
                copies.advance(ran)

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[Request]:
        """End requests from outside a step: aborts, and answers that end on a stop string (see `stop_strings`)."""
        self._catch_up()
        if request_ids is not None:
            request_ids = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        self._streamed_input.forget(request_ids)
        self._stopped = stopped_among(request_ids or ())
        ended: list[Request] = super().finish_requests(request_ids, finished_status)
        self._stopped = ()
        return ended

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> tuple[Any, Any]:
        """Called by vLLM exactly once for each request that ends, whatever the reason."""
        if self.swaps is not None:
            delay_free_blocks = False  # blocks that a copy still writes are held by it
        freed: tuple[Any, Any] = super()._free_request(request, delay_free_blocks)
        if self.transfers is not None:
            self.transfers.ended(request)
        self._end(request, self.clock())
        return freed

    def _end(self, request: Request, now_s: float) -> None:
        job = self.jobs.pop(request.request_id)
        unseen = request.num_output_tokens - job.num_output_tokens
        if unseen:
            self.ledger.sampled(job, unseen, now_s)
        departure = self._departing.pop(job.id, None)
        outcome = self._outcome(request, departure)
        if self.lengths is not None:
            self.lengths.ended(job.id, job.num_output_tokens if outcome is Outcome.FINISHED else None)
        self.following.ended(job, outcome, now_s)

    def _outcome(self, request: Request, departure: Departure | None) -> Outcome:
        if departure is not None:
            return LEFT_AS[departure]
        return Outcome.FINISHED if request.request_id in self._stopped else _ENDED_AS[request.status]

    # ---- the outside -------------------------------------------------------------------------------

    def make_stats(self, *args: Any, **kwargs: Any) -> Any:
        """vLLM's statistics, carrying ours across the process border (see `engine.metrics`)."""
        stats = super().make_stats(*args, **kwargs)
        now_s = self.clock()
        due = now_s >= self._stats_due_s or not self.ledger.live
        if stats is not None and due and works(METRICS):
            self._stats_due_s = now_s + STATS_INTERVAL_S
            grown = self.counters.grown()
            stats.num_kv_fetch_reqs_by_stage.update({f"headway.{name}": grown[name] for name in grown})
        return stats

    def answer(self, question: str, argument: str) -> list[dict[str, Any]] | str:
        """What another process asks, between two steps (see `engine.explainer`)."""
        self._catch_up()
        explainer = self.following.explainer
        return NOT_FOLLOWED if explainer is None else explainer.answer(question, argument)

    def shutdown(self) -> None:
        """Close the records, and keep what was learned of lengths, after vLLM has shut down."""
        super().shutdown()
        self.following.close()
        if self.lengths is not None:
            self.lengths.close()


class AsyncPolicyScheduler(PolicyScheduler, AsyncScheduler):  # type: ignore[misc]
    """The same over vLLM's asynchronous scheduler, which comes next in the method resolution order."""
