"""The plug-in: vLLM's scheduler, shaped by a policy before each step and compared with its plan after."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.request import Request, RequestStatus

from headway.core.job import Job, JobState
from headway.core.ledger import LEFT_AS, Ledger
from headway.core.plan import Departure, Fate, Reason, StepOutcome, StepPlan
from headway.core.record import Outcome
from headway.core.view import StepView
from headway.engine.admission import Admission
from headway.engine.compare import compare
from headway.engine.counters import Counters
from headway.engine.farewells import Farewells
from headway.engine.guard import GuardedPolicy
from headway.engine.intake import take_in
from headway.engine.queue import WindowQueue
from headway.engine.settings import EngineSettings
from headway.engine.step_model import lesson, step_time_model
from headway.engine.watchdog import STALL_GRACE_S, Remedy, Watchdog
from headway.policies.presets import build_policy
from headway.predict.step_clock import StepClock
from headway.results.records import RecordWriter

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput

logger = logging.getLogger(__name__)

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
        self.step_time = step_time_model(vllm_config)
        self.guard = GuardedPolicy(
            build_policy(settings.preset(), cost=self.step_time), self.ledger, self.counters
        )
        self.waiting = WindowQueue()
        self.admission = Admission(self)
        self.jobs: dict[str, Job] = {}
        self._default_slo = settings.default_slo()
        self._records = None if settings.records is None else RecordWriter(Path(settings.records))
        self._step_clock = StepClock(self.step_time)
        self._watchdog = Watchdog()
        self._remedy = Remedy.NONE
        self._caps: dict[str, int] = {}
        self._stats_due_s = 0.0
        self._last_work_s = 0.0
        self.seats_planned = 0
        self.defers_prefills = False
        self._preempted: list[Job] = []
        self._departing: dict[str, Departure] = {}
        self._farewells = Farewells()
        token_budget, active_reqs = self._stock_limits()
        self._view = StepView(
            total_blocks=self.kv_cache_manager.block_pool.num_gpu_blocks - 1,
            block_size=self.block_size,
            max_run=min(settings.batch_width or active_reqs, active_reqs),
            max_resident=self.max_num_running_reqs,
            max_tokens=token_budget,
            admissible=self.admission.admissible,
        )

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
        """Plan, shape, let vLLM fill, compare. Returns vLLM's own output."""
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
        outcome = self._outcome(plan, output, shaped, now_s)
        self._follow(outcome)
        self._step_clock.dispatched(lesson(outcome, self._step_clock), self.clock())
        self.counters.scheduler_s += time.perf_counter() - started
        return output

    def _plan(self, now_s: float) -> StepPlan:
        view = self._view
        view.now_s = now_s
        view.residents = self.ledger.residents
        view.waiting = self.ledger.waiting.values()
        view.free_blocks = self.kv_cache_manager.block_pool.get_num_free_blocks()
        plan = self.guard.plan(view)
        if self._remedy is Remedy.RECOMPUTE_PAUSED:
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
            self._dismiss(job.id, RequestStatus.FINISHED_ABORTED, f"headway:{departure}", departure)

    def _dismiss(
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
        paused = self._paused(plan)
        self._caps = {job.id: cap for job, cap in plan.chunk_cap.items()}
        self._caps.update((job.id, 0) for job in paused)
        self.counters.pauses += len(paused)
        if self._caps:
            # On the instance, for this step alone: vLLM calls it for every grant, and most steps cap nobody.
            self._reserve_prefill_lookahead = self._capped
        if plan.run is not self.ledger.residents:
            requests = self.requests
            self.running = [requests[job.id] for job in (*plan.run, *paused)]
        for job in plan.preempt:
            self._preempt_request(self.requests[job.id], self.clock())
            self.counters.planned_preemptions += 1
        self.waiting.show(self.admission.window(plan))
        seats = min(self._view.max_run - len(plan.run), self._view.max_resident - len(self.running))
        self.seats_planned = max(0, seats)
        self.max_num_active_reqs = len(self.running) + self.seats_planned
        self.max_num_scheduled_tokens = plan.token_budget

    def _paused(self, plan: StepPlan) -> list[Job]:
        residents = self.ledger.residents
        if len(plan.run) + len(plan.preempt) == len(residents):
            return []
        running = set(plan.run)
        return [job for job in residents if job not in running and job not in plan.preempt]

    def _unshape(self) -> None:
        self.waiting.close()
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

    def _preempt_request(self, request: Request, timestamp: float, drop_stale_output: bool = False) -> None:
        """Note every preemption, planned or vLLM's own."""
        super()._preempt_request(request, timestamp, drop_stale_output)
        self._preempted.append(self.jobs[request.request_id])

    # ---- reading what happened ---------------------------------------------------------------------

    def _outcome(self, plan: StepPlan, output: SchedulerOutput, shaped: int, now_s: float) -> StepOutcome:
        """What vLLM made of the plan: admissions stand at the end of `running`, victims are missing there."""
        jobs, granted = self.jobs, output.num_scheduled_tokens
        outcome = StepOutcome(
            now_s=now_s,
            plan=plan,
            tokens=dict(zip(map(jobs.__getitem__, granted), granted.values(), strict=True)),
            num_tokens=output.total_num_scheduled_tokens,
            preempted=dict.fromkeys(self._preempted, Fate.RECOMPUTE),
            left=dict(plan.leave),
            free_blocks=self.kv_cache_manager.block_pool.get_num_free_blocks(),
        )
        self._preempted.clear()
        for request in self.running[shaped:]:
            job = jobs[request.request_id]
            outcome.admitted.append(job)
            outcome.cached_tokens[job] = request.num_computed_tokens - outcome.tokens[job]
        return outcome

    def _follow(self, outcome: StepOutcome) -> None:
        """Compare plan and outcome, move the ledger, let the policy learn, look for a stall."""
        plan = outcome.plan
        counters = self.counters
        counters.steps += 1
        counters.scheduled_tokens += outcome.num_tokens
        counters.admissions += len(outcome.admitted)
        counters.shortage_preemptions += len(outcome.preempted) - len(plan.preempt)
        outcome.passed_over = compare(outcome, self)
        for reason in outcome.passed_over.values():
            counters.differences[reason] += 1
        self.ledger.apply(outcome)
        self.guard.observe(outcome)
        if self.settings.check:
            self._check(outcome)
        if outcome.tokens:
            self._last_work_s = outcome.now_s
            self._remedy = self._watchdog.note(stalled=False)
        else:
            counters.empty_steps += 1
            self._rescue(outcome.now_s)

    def _rescue(self, now_s: float) -> None:
        """Take the watchdog's remedy when a step did nothing although work was ready."""
        self._remedy = Remedy.NONE
        if now_s - self._last_work_s >= STALL_GRACE_S and self._stalled():
            self._remedy = self._watchdog.note(stalled=True)
        if self._remedy is Remedy.NONE:
            return
        self.counters.watchdog_faults += 1
        logger.error("work is ready and nothing ran in the last steps; remedy: %s", self._remedy.name)
        if self._remedy is Remedy.STOCK_ORDER:
            self.guard.fall_back("work is ready and nothing ran")
        elif self._remedy is Remedy.FAIL_OVERSIZED:
            self._fail_oversized()

    def _stalled(self) -> bool:
        if self._pause_state != PauseState.UNPAUSED or self._step_clock.in_flight:
            return False
        return bool(self.running) or any(
            self.admission.not_ready(request) is None for request in self.waiting
        )

    def _fail_oversized(self) -> None:
        """End a request that does not fit even an empty cache: it would block its queue for ever."""
        for request in list(self.waiting):
            needed = self._view.blocks(request.num_tokens)
            if needed > self._view.total_blocks:
                why = f"headway: needs {needed} KV blocks, the engine has {self._view.total_blocks}"
                self._dismiss(request.request_id, RequestStatus.FINISHED_ERROR, why)

    def _settle(self, now_s: float) -> None:
        """Follow preemptions vLLM made between steps (a prefix cache reset, for one)."""
        if not self._preempted:
            return
        victims = [job for job in self._preempted if job.state is JobState.RESIDENT]
        self._preempted.clear()
        outcome = StepOutcome(
            now_s=now_s,
            plan=StepPlan(run=self.ledger.residents),
            preempted=dict.fromkeys(victims, Fate.RECOMPUTE),
        )
        self.ledger.apply(outcome)
        self.guard.observe(outcome)

    def _check(self, outcome: StepOutcome) -> None:
        self.ledger.check()
        assert [job.id for job in self.ledger.residents] == [request.request_id for request in self.running]
        assert set(self.ledger.waiting) == {request.request_id for request in self.waiting}
        unexplained = [job for job, why in outcome.passed_over.items() if why is Reason.UNEXPLAINED]
        assert not unexplained, f"no reason why the engine differs from the plan for {unexplained}"

    # ---- arrivals, outputs, ends -------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Take in a request; one that cannot be served here ends at once with the reason."""
        if request.request_id in self.jobs:
            super().add_request(request)
            return
        super().add_request(request)
        job, refusal = take_in(request, self._default_slo, self.clock())
        self.jobs[job.id] = job
        self.ledger.arrive(job)
        self.guard.add(job)
        if refusal is not None:
            self._dismiss(job.id, RequestStatus.FINISHED_ERROR, refusal)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Let vLLM process a step's output, then follow it and say farewell to those who left."""
        now_s = self.clock()
        self._step_clock.finished(now_s)
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(
            scheduler_output, model_runner_output
        )
        self._sampled(outputs, now_s)
        self._farewells.deliver(outputs)
        return outputs

    def _sampled(self, outputs: dict[int, EngineCoreOutputs], now_s: float) -> None:
        """Follow the tokens that came back; the requests they ended are gone from the table already."""
        jobs, waiting, drafts = self.jobs, JobState.WAITING, self.num_spec_tokens
        for engine_outputs in outputs.values():
            for output in engine_outputs.outputs:
                job = jobs.get(output.request_id)
                if job is None:
                    continue
                if job.first_token_s is not None and job.state is not waiting and not drafts:
                    job.num_output_tokens += len(output.new_token_ids)
                elif output.new_token_ids:
                    self._sampled_rarer(job, len(output.new_token_ids), now_s)

    def _sampled_rarer(self, job: Job, num_tokens: int, now_s: float) -> None:
        """A first token, a token of a job preempted meanwhile, or one beside drafts that may be refused."""
        is_first = self.ledger.sampled(job, num_tokens, now_s)
        if self.num_spec_tokens:
            job.num_computed_tokens = self.requests[job.id].num_computed_tokens
        if is_first or job.state is JobState.WAITING:
            self.guard.touch(job)

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> tuple[Any, Any]:
        """Called by vLLM exactly once for each request that ends, whatever the reason."""
        freed: tuple[Any, Any] = super()._free_request(request, delay_free_blocks)
        self._end(request, self.clock())
        return freed

    def _end(self, request: Request, now_s: float) -> None:
        job = self.jobs.pop(request.request_id)
        unseen = request.num_output_tokens - job.num_output_tokens
        if unseen:
            self.ledger.sampled(job, unseen, now_s)
        self.guard.end(job)
        departure = self._departing.pop(job.id, None)
        outcome = _ENDED_AS[request.status] if departure is None else LEFT_AS[departure]
        record = self.ledger.end(job, outcome, now_s)
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

    def shutdown(self) -> None:
        """Close the records after vLLM has shut down."""
        super().shutdown()
        if self._records is not None:
            self._records.close()


class AsyncPolicyScheduler(PolicyScheduler, AsyncScheduler):  # type: ignore[misc]
    """The same over vLLM's asynchronous scheduler, which comes next in the method resolution order."""
