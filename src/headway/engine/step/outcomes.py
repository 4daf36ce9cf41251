"""What vLLM made of a plan, read from its output and its queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.core.job import Job, JobState
from headway.core.plan import StepOutcome, StepPlan

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

    from headway.engine.step.scheduler import PolicyScheduler


@dataclass(frozen=True, slots=True)
class FilledStep:
    """A step that vLLM has filled: `shaped` requests were running before it admitted others.

    `repeated`: its plan was that of the step before.
    """

    plan: StepPlan
    output: SchedulerOutput
    shaped: int
    now_s: float
    dispatched_s: float
    repeated: bool = False

    def as_before(self, before: FilledStep | None) -> bool:
        """Whether the step before had the same plan and grants."""
        if before is None or not self.repeated:
            return False
        return bool(self.output.num_scheduled_tokens == before.output.num_scheduled_tokens)


class Outcomes:
    """Reads what a scheduler's steps came to, before anything else has changed.

    `alike`: whether the step that was read last came to the same as the one before.
    """

    def __init__(self, scheduler: PolicyScheduler) -> None:
        self._scheduler = scheduler
        self._before: FilledStep | None = None
        self._last = StepOutcome(now_s=0.0, plan=StepPlan())
        self.alike = False

    @property
    def tokens(self) -> dict[Job, int]:
        """Who got how many tokens in the step that was read last."""
        return self._last.tokens

    def of(self, filled: FilledStep) -> StepOutcome:
        """What vLLM made of a plan; the same outcome at a later time for a kept plan that was filled as before."""
        self.alike = filled.as_before(self._before)
        self._before = filled
        if self.alike:
            self._last.now_s = filled.now_s
            self._last.free_blocks = self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        else:
            self._last = self._read(filled)
        return self._last

    def _read(self, filled: FilledStep) -> StepOutcome:
        """Admissions stand at the end of `running`, victims are missing there."""
        scheduler, plan, output = self._scheduler, filled.plan, filled.output
        granted = output.num_scheduled_tokens
        outcome = StepOutcome(
            now_s=filled.now_s,
            plan=plan,
            tokens=dict(zip(map(scheduler.jobs.__getitem__, granted), granted.values(), strict=True)),
            num_tokens=output.total_num_scheduled_tokens,
            preempted=dict(scheduler.preempted),
            offloaded=[
                job
                for job in plan.offload
                if job not in scheduler.not_offloaded and job not in scheduler.preempted
            ],
            left=dict(plan.leave),
            free_blocks=scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
            decoded_tokens=scheduler.view.decoded_tokens,
        )
        scheduler.preempted.clear()
        outcome.admitted = self._admitted(filled.shaped)
        for job in outcome.admitted:
            outcome.cached_tokens[job] = self._found_tokens(job, outcome)
        return outcome

    def between_steps(self, now_s: float) -> StepOutcome:
        """What vLLM did to residents since the last step, as the outcome of one that leaves the others as they are."""
        scheduler = self._scheduler
        victims = {job: fate for job, fate in scheduler.preempted.items() if job.state is JobState.RESIDENT}
        scheduler.preempted.clear()
        return StepOutcome(
            now_s=now_s,
            plan=StepPlan(run=scheduler.ledger.residents),
            preempted=victims,
            decoded_tokens=scheduler.view.decoded_tokens,
        )

    def _admitted(self, shaped: int) -> list[Job]:
        """Who became resident: those behind the `shaped` requests, but where some come back by way of the host."""
        scheduler = self._scheduler
        if scheduler.swaps is None:
            return [scheduler.jobs[request.request_id] for request in scheduler.running[shaped:]]
        admitted, scheduler.swaps.admitted = scheduler.swaps.admitted, []
        return admitted

    def _found_tokens(self, job: Job, outcome: StepOutcome) -> int:
        """Leading tokens an admitted job found on the device."""
        if job.state is JobState.SWAPPED:
            assert self._scheduler.swaps is not None
            return self._scheduler.swaps.found_tokens.pop(job)
        computed: int = self._scheduler.requests[job.id].num_computed_tokens
        return computed - outcome.tokens[job]
