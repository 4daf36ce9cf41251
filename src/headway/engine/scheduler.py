"""The plug-in: vLLM's scheduler, shaped by a policy before each step and compared with its plan after."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import wraps
from itertools import chain
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.request import Request, RequestStatus

from headway.core.fill import paused_by
from headway.core.job import Job
from headway.core.ledger import LEFT_AS, Ledger
from headway.core.plan import Departure, Fate, StepPlan
from headway.core.record import Outcome
from headway.core.view import StepView
from headway.engine.kv.kept import kept_programs_of
from headway.engine.kv.transfers import transfers_of
from headway.engine.lengths.in_engine import engine_lengths_of
from headway.engine.settings import EngineSettings
from headway.engine.step.admission import Admission
from headway.engine.step.arrivals import Arrivals
from headway.engine.step.compare import check_step
from headway.engine.step.context import FilledStep, StepContext
from headway.engine.step.counters import Counters
from headway.engine.step.endings import ENDED_AS, FinalOutputs, stopped_among
from headway.engine.step.explainer import NOT_FOLLOWED
from headway.engine.step.guard import GuardedPolicy
from headway.engine.step.outcomes import Outcomes, follow_sampled
from headway.engine.step.shaping import Shaping
from headway.engine.step.stall_recovery import Remedy, StallRecovery
from headway.engine.step.steady_plan import SteadyPlan
from headway.engine.step.step_listeners import StepListeners
from headway.engine.step.step_model import lesson, step_time_model
from headway.engine.step.window_queue import WindowQueue
from headway.engine.vllm.seams import METRICS, SWAPS, works
from headway.policies.presets import build_policy
from headway.predict.steps.learned import LearnedCost, StepClock

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput

    from headway.engine.kv.scheduler_side import KvSwaps


P = ParamSpec("P")
R = TypeVar("R")


def after_last_step(
    entry: Callable[Concatenate[PolicyScheduler, P], R],
) -> Callable[Concatenate[PolicyScheduler, P], R]:
    """Wrap an entry point that reads or changes jobs: the last filled step is followed first, exactly once."""

    @wraps(entry)
    def entered(self: PolicyScheduler, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._filled is not None:
            self._follow(self._filled)
        return entry(self, *args, **kwargs)

    return entered


class PolicyScheduler(Scheduler):  # type: ignore[misc]
    """vLLM's scheduler under a policy: view -> plan -> shaped `schedule()` -> outcome -> observe.

    Everything up to the shaped `schedule()` delays the step; the rest happens while the workers compute.

    vLLM's own code grants tokens, allocates blocks and talks to the workers. This class decides which requests vLLM
    finds, in which order, and how many tokens each may get. All decisions use `clock` (seconds). `wall_clock` only
    tells the age of an arriving request. A run without a model, or against the simulator, replaces both by its virtual
    time.
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
        self.jobs: dict[str, Job] = {}
        self.preempted: dict[Job, Fate] = {}
        self.step = StepContext()
        self._filled: FilledStep | None = None
        self._admission_closed = False
        self._ended_as: dict[str, Outcome] = {}
        self.admission = Admission(self)
        self.view = self._empty_view(settings, kv_blocks)
        self.lengths = engine_lengths_of(self)
        self.listeners = StepListeners(self, self.admission)
        explainer, steps = self.listeners.explainer, self.cost.steps
        self.step_clock = StepClock(steps if explainer is None else explainer.judging(steps))
        self.outcomes = Outcomes(self)
        self._arrivals = Arrivals(settings.default_slo())
        self._shaping = Shaping(self, self.admission)
        self._stalls = StallRecovery(self, self.admission, self.step_clock)
        self._final_outputs = FinalOutputs()
        self.swaps = self._swaps()
        self.transfers = transfers_of(self, self.admission)
        self.kept = kept_programs_of(self, self.admission)

    def _empty_view(self, settings: EngineSettings, kv_blocks: int) -> StepView:
        """The initial view for policies: the fixed limits, and no job."""
        token_budget, active_reqs = self._stock_limits()
        return StepView(
            total_blocks=kv_blocks,
            watermark_blocks=self.kv_cache_manager.watermark_blocks,
            block_size=self.block_size,
            max_run=min(settings.batch_width or active_reqs, active_reqs),
            max_resident=self.max_num_running_reqs,
            max_tokens=token_budget,
            tokens_a_decode=1 + self.num_spec_tokens,
            graphed_tokens=self.cost.steps.graphed_tokens,
            admissible=self.admission.admissible,
            ready=self.admission.ready,
            missing_blocks=self.admission.missing_blocks,
        )

    def _swaps(self) -> KvSwaps | None:
        """Make the swaps of KV; None without a connector, or if vLLM lacks a name that they need."""
        if self.connector is None or not works(SWAPS):
            return None
        from headway.engine.kv.connector import swaps_of  # this module needs names that vLLM may lack

        return swaps_of(self, self.admission, self.listeners, serial=self.guard.policy.serial_copies)

    def _one_token_at_a_time(self) -> bool:
        """Whether steps never overlap and bring no drafts."""
        pipelined = self.parallel_config.pipeline_parallel_size > 1
        return not (self.scheduler_config.async_scheduling or pipelined or self.num_spec_tokens)

    def _stock_limits(self) -> tuple[int, int]:
        """The limits that vLLM itself would set: tokens a step, and running requests. A step may lower both."""
        config = self.scheduler_config
        tokens, active = config.max_num_scheduled_tokens, config.max_num_active_seqs
        return (
            config.max_num_batched_tokens if tokens is None else tokens,
            self.max_num_running_reqs if active is None else active,
        )

    # ---- one step ----------------------------------------------------------------------------------

    @after_last_step
    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Plan, shape, let vLLM fill. Returns vLLM's own output.

        A repeated plan needs no shaping: all residents decode, in vLLM's own order, and no job waits.
        """
        started = time.perf_counter()
        now_s = self.clock()
        if self.lengths is not None:
            self.lengths.tell(self.jobs, self.guard)
        self._settle(now_s)
        defers = self._shaping.defers_prefills(throttle_prefills)
        plan = self._plan(self._look(now_s, defers_prefills=defers))
        repeated = self.guard.repeated and plan.run is self.ledger.residents
        if not repeated:
            self._depart(plan)
            self._admission_closed = False
            self.step = self._shaping.shape(plan, defers_prefills=defers, may_release=not throttle_prefills)
        delegated = time.perf_counter()
        try:
            output = super().schedule(throttle_prefills)
        finally:
            if not repeated:
                self._shaping.undo()
                self.max_num_scheduled_tokens, self.max_num_active_reqs = self._stock_limits()
        self.counters.vllm_schedule_s += time.perf_counter() - delegated
        if self.transfers is not None:
            self.transfers.filled()
        self._filled = FilledStep(self.step, output, now_s, self.clock(), self._admission_closed, repeated)
        self.counters.scheduler_s += time.perf_counter() - started
        return output

    @after_last_step
    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> Any:
        """Follow the step. vLLM calls this after the workers have begun, so it delays no request."""
        return super().get_grammar_bitmask(scheduler_output)

    def _follow(self, filled: FilledStep) -> None:
        """Read what a filled step did, tell its listeners, and learn from it."""
        self._filled = None
        started = time.perf_counter()
        outcome, alike = self.outcomes.of(filled), self.outcomes.alike
        self.listeners.stepped(outcome, filled, alike=alike)
        if self.settings.check:
            check_step(outcome, self)
        self._stalls.follow(outcome)
        # Steps that wait for copies or loads, or after which vLLM (from 0.33 on) makes no drafts, are not typical.
        unlike = (
            filled.output.has_sync_kv_loads
            or (self.swaps is not None and self.swaps.step_waits)
            or getattr(filled.output, "skip_drafts", False)
        )
        learned = None if unlike else lesson(outcome, self.step_clock, alike=alike)
        self.step_clock.dispatched(learned, filled.dispatched_s)
        self.step_clock.learn()
        self.counters.follow_s += time.perf_counter() - started

    def _settle(self, now_s: float) -> None:
        """Follow preemptions that vLLM made between steps, such as by a reset of the prefix cache."""
        if self.preempted:
            self.view.residents = self.ledger.residents
            self.listeners.moved(self.outcomes.between_steps(now_s))

    def _look(self, now_s: float, *, defers_prefills: bool) -> StepView:
        """Fill the view that the policy sees before this step."""
        view = self.view
        view.now_s = now_s
        view.defers_prompts = defers_prefills
        view.residents = self.ledger.residents
        view.waiting = self.ledger.waiting.values()
        if self.scheduler_config.async_scheduling:
            for job in view.residents:
                job.num_output_placeholders = self.requests[job.id].num_output_placeholders
        view.free_blocks = self.kv_cache_manager.block_pool.get_num_free_blocks()
        view.waiting_elsewhere = self._arrivals.waiting_elsewhere
        view.told_elsewhere_s = self._arrivals.told_elsewhere_s
        if self.swaps is not None:
            view.swapped = self.ledger.swapped.values()
            view.restoring = self.swaps.copies.restoring
            view.returned = self.swaps.copies.returned
            view.blocks_coming_free = self.swaps.device.coming_free
            view.host_free_blocks = self.swaps.copies.host.free_blocks
        if self.transfers is not None:
            self.transfers.look()
        if self.kept:
            if self.guard.fell_back:
                self.kept.clear()
            else:
                self.kept.before_step(view)
            view.free_blocks = self.kv_cache_manager.block_pool.get_num_free_blocks()
        return view

    def _plan(self, view: StepView) -> StepPlan:
        """Ask the policy for a plan, and restrict it to what the engine can do."""
        adapters = self.admission.adapters
        if adapters is not None:
            adapters.look(self.outcomes.tokens, chain(view.waiting, view.swapped), view.now_s)
        plan = self.guard.plan(view)
        if self._stalls.remedy is Remedy.RECOMPUTE_PAUSED:
            paused = paused_by(plan, self.ledger.residents)
            plan.preempt = {**plan.preempt, **dict.fromkeys(paused, Fate.RECOMPUTE)}
        if adapters is not None:
            plan.run, plan.admit = adapters.within(plan.run), adapters.turns(plan, view.waiting)
        if self.transfers is not None and not plan.preempt:
            self.transfers.admit_loaded(plan)
        return plan

    def _depart(self, plan: StepPlan) -> None:
        """End the requests that the plan lets leave; their clients learn of it with the next output."""
        for job, departure in plan.leave.items():
            self.counters.departures[departure] += 1
            self._ended_as[job.id] = LEFT_AS[departure]
            if departure is Departure.HAND_OFF:
                self._arrivals.handed_off(job)
            self.dismiss(job.id, RequestStatus.FINISHED_ABORTED, f"headway:{departure}")

    def dismiss(self, request_id: str, status: RequestStatus, reason: str) -> None:
        """End one request now, and queue its last output."""
        for request in super().finish_requests(request_id, status):
            self._final_outputs.add(request, reason, failed=status is RequestStatus.FINISHED_ERROR)

    # ---- while vLLM fills the step -----------------------------------------------------------------

    @property
    def short_of_blocks(self) -> bool:
        """Whether the step being filled has run out of blocks."""
        return self._admission_closed or len(self.preempted) > len(self.step.plan.preempt)

    def take_seat(self) -> None:
        """Take a seat for an admitted request that waits for its KV; vLLM does not count it."""
        self.max_num_active_reqs -= 1

    def close_admission(self) -> None:
        """Let vLLM start or resume no more requests in this step, since copies will free the blocks that it lacks."""
        self._admission_closed = True
        self.max_num_active_reqs = 0

    def _preempt_request(
        self,
        request: Request,
        timestamp: float,
        drop_stale_output: bool = False,
        *,
        fate: Fate | None = None,
    ) -> None:
        """Decide what becomes of the KV, and record the preemption: planned if it has a `fate`, else vLLM's own."""
        job, swaps = self.jobs[request.request_id], self.swaps
        is_void = drop_stale_output
        self.preempted[job] = Fate.RECOMPUTE if swaps is None else swaps.leave(request, fate, is_void=is_void)
        super()._preempt_request(request, timestamp, drop_stale_output)
        if swaps is not None:
            swaps.copies.advance(job)

    @after_last_step
    def reset_prefix_cache(self, reset_running_requests: bool = False, *args: Any, **kwargs: Any) -> bool:
        """Drop KV from before the reset: copies on the host, and copies on their way back."""
        with (
            nullcontext() if self.swaps is None else self.swaps.given_up(returned_too=reset_running_requests)
        ):
            if self.kept is not None:
                self.kept.clear()
            reset: bool = super().reset_prefix_cache(reset_running_requests, *args, **kwargs)
        return reset

    # ---- arrivals, outputs, ends -------------------------------------------------------------------

    @after_last_step
    def add_request(self, request: Request) -> None:
        """Take in a request; end it at once, with the reason, if it cannot be served here."""
        if request.request_id in self.jobs:
            super().add_request(request)
            return
        super().add_request(request)
        now_s = self.clock()
        job, refusal = self._arrivals.job_of(request, now_s, self.wall_clock())
        self.jobs[job.id] = job
        self.listeners.arrived(job, now_s)
        refusal = refusal or self.admission.too_large(request)
        if refusal is not None:
            self.dismiss(job.id, RequestStatus.FINISHED_ERROR, refusal)
        elif self.lengths is not None:
            self.lengths.arrived(request)

    @after_last_step
    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Let vLLM process a step's output, follow it, and add the last outputs of requests that left."""
        now_s = self.clock()
        if self.listeners.explainer is not None:
            self.listeners.explainer.now_s = now_s
        self.step_clock.finished(now_s)
        kv_output = model_runner_output.kv_connector_output
        if self.swaps is not None and kv_output is not None and kv_output.invalid_block_ids:
            self.swaps.requests.distrust(kv_output.invalid_block_ids)
            kv_output.invalid_block_ids = (
                set()
            )  # vLLM's own recovery would deliver tokens that were sampled on missing KV
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(
            scheduler_output, model_runner_output
        )
        follow_sampled(outputs, self, now_s)
        if self.swaps is not None:
            self.swaps.ran(scheduler_output.num_scheduled_tokens)
        elif kv_output is not None and kv_output.invalid_block_ids and self.transfers is not None:
            self.transfers.failed()
        self._final_outputs.deliver(outputs)
        return outputs

    @after_last_step
    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[Request]:
        """End requests from outside a step: aborts, and answers that end on a stop string (see `endings`)."""
        if request_ids is not None:
            request_ids = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        self._arrivals.forget(request_ids)
        self._ended_as.update(dict.fromkeys(stopped_among(request_ids or ()), Outcome.FINISHED))
        ended: list[Request] = super().finish_requests(request_ids, finished_status)
        self._ended_as.clear()
        return ended

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> tuple[Any, Any]:
        """Called by vLLM exactly once for each request that ends, for whatever reason."""
        if self.swaps is not None:
            delay_free_blocks = False  # a copy that still writes the blocks holds them itself
        if self.kept is not None:
            job, now_s = self.jobs[request.request_id], self.clock()
            self.kept.ended(job, now_s, finished=self._outcome_of(request) is Outcome.FINISHED)
        freed: tuple[Any, Any] = super()._free_request(request, delay_free_blocks)
        if self.transfers is not None:
            self.transfers.ended(request)
        self._end(request, self.clock())
        return freed

    def _outcome_of(self, request: Request) -> Outcome:
        return self._ended_as.get(request.request_id) or ENDED_AS[request.status]

    def _end(self, request: Request, now_s: float) -> None:
        job = self.jobs.pop(request.request_id)
        unseen = request.num_output_tokens - job.num_output_tokens
        if unseen:
            self.ledger.sampled(job, unseen, now_s)
        outcome = self._outcome_of(request)
        self._ended_as.pop(job.id, None)
        if self.lengths is not None:
            self.lengths.ended(job.id, job.num_output_tokens if outcome is Outcome.FINISHED else None)
        self.listeners.ended(job, outcome, now_s)

    # ---- calls from outside --------------------------------------------------------------------------------

    def make_stats(self, *args: Any, **kwargs: Any) -> Any:
        """vLLM's statistics, which carry ours across the process border (see `vllm/metrics.py`)."""
        stats = super().make_stats(*args, **kwargs)
        if stats is not None and works(METRICS):
            grown = self.counters.news(self.clock(), is_last=not self.ledger.live)
            stats.num_kv_fetch_reqs_by_stage.update({f"headway.{name}": grown[name] for name in grown})
        return stats

    @after_last_step
    def answer(self, question: str, argument: str) -> list[dict[str, Any]] | str:
        """Answer a question of another process, between two steps (see `step/explainer.py`)."""
        explainer = self.listeners.explainer
        return NOT_FOLLOWED if explainer is None else explainer.answer(question, argument)

    def shutdown(self) -> None:
        """Let vLLM shut down, then close the records and save what was learned of lengths."""
        super().shutdown()
        self.listeners.close()
        if self.lengths is not None:
            self.lengths.close()


class AsyncPolicyScheduler(PolicyScheduler, AsyncScheduler):  # type: ignore[misc]
    """`PolicyScheduler` over vLLM's asynchronous scheduler, which is next in the method resolution order."""


def scheduler_class(vllm_config: VllmConfig) -> type[PolicyScheduler]:
    """Headway's class over the base that stock would pick: AsyncScheduler exactly when scheduling is asynchronous."""
    asynchronous = vllm_config.scheduler_config.async_scheduling
    return AsyncPolicyScheduler if asynchronous else PolicyScheduler
