"""The plug-in: vLLM's scheduler, shaped by a policy before each step and compared with its plan after."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.request import Request, RequestStatus

from headway.core.fill import paused_by
from headway.core.host_copies import HostCopies
from headway.core.job import Job, JobState
from headway.core.ledger import LEFT_AS, Ledger
from headway.core.plan import Departure, Fate, Reason, StepOutcome, StepPlan
from headway.core.record import Outcome
from headway.core.view import StepView
from headway.engine.admission import Admission
from headway.engine.compare import compare
from headway.engine.counters import Counters
from headway.engine.explainer import NOT_FOLLOWED, explainer_of
from headway.engine.farewells import Farewells
from headway.engine.guard import GuardedPolicy
from headway.engine.intake import take_in
from headway.engine.kv.scheduler_side import swaps_of
from headway.engine.prefixes import prefix_watch_of
from headway.engine.queue import WindowQueue
from headway.engine.rescue import Rescue
from headway.engine.served_records import records_of
from headway.engine.settings import EngineSettings
from headway.engine.steady_plan import SteadyPlan
from headway.engine.step_model import lesson, step_time_model
from headway.engine.watchdog import Remedy
from headway.policies.presets import build_policy
from headway.predict.learned_cost import LearnedCost
from headway.predict.step_clock import StepClock

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput


_NEWEST_DECODE_SHARE = 0.01
"""Weight of the newest decode in the running mean of what one with drafts brings."""
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


@dataclass(frozen=True, slots=True)
class _Filled:
    """A step that vLLM has filled: `shaped` requests were running before it admitted others."""

    plan: StepPlan
    output: SchedulerOutput
    shaped: int
    now_s: float
    dispatched_s: float

    def as_before(self, before: _Filled | None) -> bool:
        """Whether the step before had the same plan and grants."""
        if before is None or self.plan is not before.plan:
            return False
        return bool(self.output.num_scheduled_tokens == before.output.num_scheduled_tokens)


class PolicyScheduler(Scheduler):  # type: ignore[misc]
    """vLLM's scheduler under a policy: view -> plan -> shaped `schedule()` -> outcome -> observe.

    All up to the shaped `schedule()` holds up the step; what follows is done while the workers compute it.

    vLLM's own code grants tokens, allocates blocks and talks to the workers; this class only decides in
    which order it finds the requests, which of them, and with how many tokens at most. `clock` is the one
    clock of its decisions, in seconds; a run against the simulator puts the simulator's in its place.
    """

    clock: Callable[[], float] = staticmethod(time.monotonic)

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
        policy = build_policy(settings.preset(), self.cost)
        steady = SteadyPlan() if self._one_token_at_a_time() else None
        self.guard = GuardedPolicy(policy, self.ledger, self.counters, steady)
        self.waiting = WindowQueue()
        self.kv_holding_waiting = WindowQueue()
        self.admission = Admission(self)
        self._prefixes = prefix_watch_of(self)
        self.jobs: dict[str, Job] = {}
        self._default_slo = settings.default_slo()
        self._records = records_of(self)
        self._explainer = explainer_of(self)
        steps = self.cost.steps
        self.step_clock = StepClock(steps if self._explainer is None else self._explainer.judging(steps))
        self._rescue = Rescue(self)
        self._caps: dict[str, int] = {}
        self._stats_due_s = 0.0
        self.seats_planned = 0
        self.admission_closed = False
        self.defers_prefills = False
        self.preempted: dict[Job, Fate] = {}
        self._planned_fate: Fate | None = None
        self._filled: _Filled | None = None
        self._followed: _Filled | None = None
        self._tokens: dict[Job, int] = {}
        self.shaped_plan = StepPlan()
        self._not_offloaded: dict[Job, Reason] = {}
        self._departing: dict[str, Departure] = {}
        self._farewells = Farewells()
        token_budget, active_reqs = self._stock_limits()
        self.view = StepView(
            total_blocks=self.kv_cache_manager.block_pool.num_gpu_blocks - 1,
            block_size=self.block_size,
            max_run=min(settings.batch_width or active_reqs, active_reqs),
            max_resident=self.max_num_running_reqs,
            max_tokens=token_budget,
            tokens_a_decode=1 + self.num_spec_tokens,
            admissible=self.admission.admissible,
            ready=self.admission.ready,
            missing_blocks=self.admission.missing_blocks,
        )
        self.swaps = swaps_of(self, serial=self.guard.policy.serial_copies)
        if self.swaps is not None:
            self.view.host_total_blocks = self.swaps.copies.host.num_blocks
            self.view.uncopied_blocks = self.swaps.copies.uncopied_blocks
            self.view.unsent_blocks = self.swaps.copies.unsent_blocks

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
        """Plan, shape, let vLLM fill. Returns vLLM's own output."""
        self._catch_up()
        started = time.perf_counter()
        now_s = self.clock()
        self._settle(now_s)
        self.defers_prefills = throttle_prefills and self._may_defer_prefills()
        plan = self._plan(now_s)
        self._depart(plan)
        self._shape(plan)
        shaped = len(self.running)
        delegated = time.perf_counter()
        try:
            output = super().schedule(throttle_prefills)
        finally:
            self._unshape()
        self.counters.vllm_schedule_s += time.perf_counter() - delegated
        self._filled = _Filled(plan, output, shaped, now_s, self.clock())
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
        outcome = self._outcome(filled)
        self._follow(outcome)
        waits = self.swaps is not None and self.swaps.step_waits
        self.step_clock.dispatched(None if waits else lesson(outcome, self.step_clock), filled.dispatched_s)
        self.step_clock.learn()
        self.counters.follow_s += time.perf_counter() - started

    def _plan(self, now_s: float) -> StepPlan:
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
        if self.lora_config is not None:
            self.admission.look_at_adapters(self._tokens)
        plan = self.guard.plan(view)
        if self._rescue.remedy is Remedy.RECOMPUTE_PAUSED:
            running = set(plan.run)
            paused = [job for job in self.ledger.residents if job not in running]
            plan.preempt = {**plan.preempt, **dict.fromkeys(paused, Fate.RECOMPUTE)}
        if self.lora_config is not None:
            plan.run = self.admission.within_adapters(plan.run)
        return plan

    def _may_defer_prefills(self) -> bool:
        """Whether vLLM leaves prompts for a later step when asked to, so that data-parallel engines keep pace."""
        return not self.prefill_capacity_bound and any(
            not request.is_prefill_chunk for request in self.running
        )

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
        for request in self.finish_requests(request_id, status):
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
        self.kv_holding_waiting.show(resumable)
        self.waiting.show(self.admission.window(plan))
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

    def _preempt_planned(self, plan: StepPlan) -> None:
        for job, fate in plan.preempt.items():
            self.counters.planned_preemptions += 1
            self._preempt(self.requests[job.id], fate)

    def _offload(self, plan: StepPlan) -> None:
        """Start the copies of paused requests that the plan wants on the host; why not, where that cannot be."""
        self._not_offloaded = {}
        for job in plan.offload:
            refused = Reason.HOST_BLOCKS if self.swaps is None else self._copy_ahead(self.swaps.copies, job)
            if refused is not None:
                self._not_offloaded[job] = refused

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
        self.max_num_scheduled_tokens, self.max_num_active_reqs = self._stock_limits()

    def _capped(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        """In place of vLLM's last clipping of a grant: 0 pauses a running request, k caps its chunk.

        A grant past the known tokens holds drafts, or vLLM's padding for them: it is whole or nothing.
        """
        granted: int = super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)
        cap = self._caps.get(request.request_id, granted)
        if cap and num_computed_tokens + granted > request.num_tokens:
            return granted
        return min(granted, cap)

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
        self._preempt_request(request, self.clock())

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

    # ---- reading what happened ---------------------------------------------------------------------

    def _outcome(self, filled: _Filled) -> StepOutcome:
        """What vLLM made of the plan: admissions stand at the end of `running`, victims are missing there."""
        plan, output = filled.plan, filled.output
        outcome = StepOutcome(
            now_s=filled.now_s,
            plan=plan,
            tokens=self._granted(filled),
            num_tokens=output.total_num_scheduled_tokens,
            preempted=dict(self.preempted),
            offloaded=[
                job for job in plan.offload if job not in self._not_offloaded and job not in self.preempted
            ],
            left=dict(plan.leave),
            free_blocks=self.kv_cache_manager.block_pool.get_num_free_blocks(),
            decoded_tokens=self.view.decoded_tokens,
        )
        self.preempted.clear()
        outcome.admitted = self._admitted(filled.shaped)
        for job in outcome.admitted:
            outcome.cached_tokens[job] = self._found_tokens(job, outcome)
        return outcome

    def _granted(self, filled: _Filled) -> dict[Job, int]:
        """Who got how many tokens: the same mapping for a kept plan that was filled as before; nobody looks twice."""
        granted = filled.output.num_scheduled_tokens
        if not filled.as_before(self._followed):
            jobs = self.jobs
            self._tokens = dict(zip(map(jobs.__getitem__, granted), granted.values(), strict=True))
        self._followed = filled
        return self._tokens

    def _admitted(self, shaped: int) -> list[Job]:
        """Who became resident: those behind the `shaped` requests, but where some come back by way of the host."""
        if self.swaps is None:
            return [self.jobs[request.request_id] for request in self.running[shaped:]]
        admitted, self.swaps.admitted = self.swaps.admitted, []
        return admitted

    def _found_tokens(self, job: Job, outcome: StepOutcome) -> int:
        """Leading tokens an admitted job found on the device."""
        if job.state is JobState.SWAPPED:
            assert self.swaps is not None
            return self.swaps.found_tokens.pop(job)
        computed: int = self.requests[job.id].num_computed_tokens
        return computed - outcome.tokens[job]

    def _follow(self, outcome: StepOutcome) -> None:
        """Compare plan and outcome, move the ledger, let the policy learn, look for a stall."""
        plan = outcome.plan
        counters = self.counters
        counters.steps += 1
        counters.scheduled_tokens += outcome.num_tokens
        counters.admissions += len(outcome.admitted)
        counters.shortage_preemptions += len(outcome.preempted) - len(plan.preempt)
        counters.swaps += sum(fate is Fate.SWAP for fate in outcome.preempted.values())
        outcome.passed_over = compare(outcome, self)
        if self.swaps is not None:
            self.swaps.found_tokens.clear()
        outcome.passed_over.update(self._not_offloaded)
        for reason in outcome.passed_over.values():
            counters.differences[reason] += 1
        self.ledger.apply(outcome)
        if self._explainer is not None:
            self._explainer.stepped(self.view, outcome)
        if self._prefixes is not None:
            self._prefixes.follow(outcome)
        self.guard.observe(outcome)
        if self.settings.check:
            self._check(outcome)
        counters.empty_steps += not outcome.tokens
        self._rescue.follow(outcome)

    def _settle(self, now_s: float) -> None:
        """Follow preemptions vLLM made between steps (a prefix cache reset, for one)."""
        if not self.preempted:
            return
        victims = {job: fate for job, fate in self.preempted.items() if job.state is JobState.RESIDENT}
        self.preempted.clear()
        outcome = StepOutcome(now_s=now_s, plan=StepPlan(run=self.ledger.residents), preempted=victims)
        self.view.residents = self.ledger.residents
        self.ledger.apply(outcome)
        if self._explainer is not None:
            self._explainer.stepped(self.view, outcome)
        if self._prefixes is not None:
            self._prefixes.follow(outcome)
        self.guard.observe(outcome)

    def _check(self, outcome: StepOutcome) -> None:
        self.ledger.check()
        running = [request.request_id for request in self.running]
        queued = {request.request_id for request in self.waiting}
        if self.swaps is None:
            assert [job.id for job in self.ledger.residents] == running
        else:
            running += [request.request_id for request in self.kv_holding_waiting]
            assert sorted(job.id for job in self.ledger.residents) == sorted(running)
            self.swaps.check(self.ledger.residents)
        assert {*self.ledger.waiting, *self.ledger.swapped} == queued
        unexplained = [job for job, why in outcome.passed_over.items() if why is Reason.UNEXPLAINED]
        assert not unexplained, f"no reason why the engine differs from the plan for {unexplained}"

    # ---- arrivals, outputs, ends -------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Take in a request; one that cannot be served here ends at once with the reason."""
        self._catch_up()
        if request.request_id in self.jobs:
            super().add_request(request)
            return
        super().add_request(request)
        now_s = self.clock()
        job, refusal = take_in(request, self._default_slo, now_s)
        self.jobs[job.id] = job
        self.ledger.arrive(job)
        if self._prefixes is not None:
            self._prefixes.come(job)
        if self._explainer is not None:
            self._explainer.arrived(job, now_s)
        self.guard.add(job)
        if refusal is not None:
            self.dismiss(job.id, RequestStatus.FINISHED_ERROR, refusal)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Let vLLM process a step's output, then follow it and say farewell to those who left."""
        self._catch_up()
        now_s = self.clock()
        if self._explainer is not None:
            self._explainer.now_s = now_s
        self.step_clock.finished(now_s)
        kv_output = model_runner_output.kv_connector_output
        if self.swaps is not None and kv_output is not None and kv_output.invalid_block_ids:
            self.swaps.requests.distrust(kv_output.invalid_block_ids)
            kv_output.invalid_block_ids = set()
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(
            scheduler_output, model_runner_output
        )
        self._sampled(outputs, now_s)
        if self.swaps is not None:
            self._follow_copies(scheduler_output)
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

    def _sampled(self, outputs: dict[int, EngineCoreOutputs], now_s: float) -> None:
        """Follow the tokens that came back; the requests they ended are gone from the table already."""
        jobs, resident, drafts = self.jobs, JobState.RESIDENT, self.num_spec_tokens
        for engine_outputs in outputs.values():
            for output in engine_outputs.outputs:
                job = jobs.get(output.request_id)
                if job is None:
                    continue
                if job.first_token_s is not None and job.state is resident and not drafts:
                    job.num_output_tokens += len(output.new_token_ids)
                elif output.new_token_ids:
                    self._sampled_rarer(job, len(output.new_token_ids), now_s)

    def _sampled_rarer(self, job: Job, num_tokens: int, now_s: float) -> None:
        """A first token, a token of a job preempted meanwhile, or one beside drafts that may be refused."""
        is_first = self.ledger.sampled(job, num_tokens, now_s)
        if not is_first:
            self.view.decoded_tokens += (num_tokens - self.view.decoded_tokens) * _NEWEST_DECODE_SHARE
        if self.num_spec_tokens and job.state is JobState.RESIDENT:
            job.num_computed_tokens = self.requests[job.id].num_computed_tokens
        if is_first or job.state is not JobState.RESIDENT:
            self.guard.touch(job)

    def finish_requests(self, *args: Any, **kwargs: Any) -> list[Request]:
        """End requests from outside a step: aborts, for one."""
        self._catch_up()
        ended: list[Request] = super().finish_requests(*args, **kwargs)
        return ended

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> tuple[Any, Any]:
        """Called by vLLM exactly once for each request that ends, whatever the reason."""
        if self.swaps is not None:
            delay_free_blocks = False  # blocks that a copy still writes are held by it
        freed: tuple[Any, Any] = super()._free_request(request, delay_free_blocks)
        self._end(request, self.clock())
        return freed

    def _end(self, request: Request, now_s: float) -> None:
        job = self.jobs.pop(request.request_id)
        unseen = request.num_output_tokens - job.num_output_tokens
        if unseen:
            self.ledger.sampled(job, unseen, now_s)
        departure = self._departing.pop(job.id, None)
        outcome = _ENDED_AS[request.status] if departure is None else LEFT_AS[departure]
        self.guard.end(job, finished=outcome is Outcome.FINISHED)
        if self._prefixes is not None:
            self._prefixes.end(job)
        if self.swaps is not None:
            self.swaps.forget(job)
        record = self.ledger.end(job, outcome, now_s)
        if self._explainer is not None:
            self._explainer.ended(record)
        if self._records is not None:
            self._records.append(record)

    # ---- the outside -------------------------------------------------------------------------------

    def make_stats(self, *args: Any, **kwargs: Any) -> Any:
        """vLLM's statistics, carrying ours across the process border (see `engine.metrics`)."""
        stats = super().make_stats(*args, **kwargs)
        now_s = self.clock()
        if stats is not None and (now_s >= self._stats_due_s or not self.ledger.live):
            self._stats_due_s = now_s + STATS_INTERVAL_S
            grown = self.counters.grown()
            stats.num_kv_fetch_reqs_by_stage.update({f"headway.{name}": grown[name] for name in grown})
        return stats

    def answer(self, question: str, argument: str) -> list[dict[str, Any]] | str:
        """What another process asks, between two steps (see `engine.explainer`)."""
        self._catch_up()
        return NOT_FOLLOWED if self._explainer is None else self._explainer.answer(question, argument)

    def shutdown(self) -> None:
        """Close the records after vLLM has shut down."""
        super().shutdown()
        if self._records is not None:
            self._records.close()


class AsyncPolicyScheduler(PolicyScheduler, AsyncScheduler):  # type: ignore[misc]
    """The same over vLLM's asynchronous scheduler, which comes next in the method resolution order."""
