"""Compares a plan with its outcome, and names every difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import RequestStatus

from headway.core.job import Job, JobState
from headway.core.plan import Reason, StepOutcome
from headway.engine.step.admission import Admission
from headway.engine.step.context import FilledStep
from headway.engine.step.ports import StepPort

if TYPE_CHECKING:
    from vllm.v1.request import Request

_PASSED_OVER = frozenset(
    {
        *(Reason.GRAMMAR, Reason.REMOTE_KV, Reason.REMOTE_LOOKUP, Reason.RESTORES),
        *(Reason.STALE_OUTPUT, Reason.LORA, Reason.HELD),
    }
)
"""Reasons for which every vLLM skips a waiting job. Any other reason ends admission, unless vLLM put the job back."""


def compare(
    outcome: StepOutcome, filled: FilledStep, engine: StepPort, admission: Admission
) -> dict[Job, Reason]:
    """Why each job of the plan got nothing, or less than its share. Must run before anything else changes.

    O(1) for a step that only decodes and served all jobs of the plan: most steps of an engine that keeps up.
    """
    plan = outcome.plan
    others = plan.admit or plan.prefetch or engine._inflight_prefills or filled.step.over_adapters
    if not others and len(outcome.tokens) == len(plan.run):
        return {}
    return _Comparison(outcome, filled, engine, admission).differences()


@dataclass(frozen=True, slots=True)
class _Comparison:
    """One step's plan and its outcome.

    vLLM grants tokens only to running requests: the plan's, the paused (capped at 0) and the admitted. Equal counts
    therefore mean that every job of `run` got tokens. Candidates behind the one that ended admission are spares, not
    differences.
    """

    outcome: StepOutcome
    filled: FilledStep
    engine: StepPort
    admission: Admission

    @property
    def full(self) -> bool:
        """Whether the whole budget of the step was granted."""
        return self.outcome.num_tokens >= self.outcome.plan.token_budget

    def differences(self) -> dict[Job, Reason]:
        """Name each difference; looks once at the blocks for the job that ended admission."""
        differences: dict[Job, Reason] = {}
        outcome, engine = self.outcome, self.engine
        if len(outcome.tokens) != len(outcome.plan.run) + len(outcome.admitted):
            ended = False
            for job in outcome.plan.run:
                if job not in outcome.tokens:
                    differences[job] = self._why_nothing(job, ended=ended)
                    ended |= differences[job] is Reason.BLOCKS
            unplanned = outcome.tokens.keys() - {*outcome.plan.run, *outcome.admitted}
            differences.update(dict.fromkeys(unplanned, Reason.UNEXPLAINED))
        differences.update(dict.fromkeys(self.filled.step.over_adapters, Reason.LORA))
        if not self.full:
            differences.update(self._short_chunks())
        if not self._ended_by_returned(differences):
            differences.update(self._admit_differences())
        if outcome.plan.prefetch:
            differences.update(self._not_prefetched())
        for job in engine.view.fetching:
            if job.state is JobState.WAITING and engine.transfers is not None:
                looking_up = engine.transfers.is_undecided(engine.requests[job.id])
                differences[job] = Reason.REMOTE_LOOKUP if looking_up else Reason.REMOTE_KV
        return differences

    def _ended_by_returned(self, differences: dict[Job, Reason]) -> bool:
        """Whether a job that came back from the host did not fit: vLLM then looks at no other job."""
        if self.engine.swaps is None:
            return False
        copies = self.engine.swaps.copies
        return any(job in copies.returned and job not in copies.restoring for job in differences)

    def _short_chunks(self) -> dict[Job, Reason]:
        """Jobs still in prefill after a step with unused tokens."""
        short: dict[Job, Reason] = {}
        for request in self.engine._inflight_prefills:
            job = self.engine.jobs[request.request_id]
            granted = self.outcome.tokens.get(job)
            if granted is not None and granted != self.outcome.plan.chunk_cap.get(job):
                short[job] = self._why_less(request)
        return short

    def _why_nothing(self, job: Job, *, ended: bool) -> Reason:
        """Why a resident job of the plan got no token. `ended`: vLLM lacked blocks for an earlier job, and stopped."""
        request = self.engine.requests[job.id]
        if self.engine._pause_state == PauseState.PAUSED_ALL:
            return Reason.ENGINE_PAUSED
        if job in self.outcome.preempted or self.filled.admission_closed:
            return Reason.BLOCKS
        if self.engine.swaps is not None and job in self.engine.swaps.copies.returned:
            return self._why_not_resumed(job)
        if self._waits_for_frees(job):
            return Reason.BLOCKS
        if request.num_in_flight_tokens:
            return Reason.IN_FLIGHT
        if self.full:
            return Reason.BUDGET
        if self.outcome.preempted or ended:
            return Reason.BLOCKS
        if self.filled.step.defers_prefills and request.is_prefill_chunk:
            return Reason.ENGINE_PAUSED
        return self._why_no_chunk(request)

    def _waits_for_frees(self, job: Job) -> bool:
        """Whether a job lacked blocks and vLLM preempted no victim, because blocks would not have come free at once."""
        if self.engine.transfers is None:
            return False
        left = self.outcome.plan.token_budget - sum(
            self.outcome.tokens.get(other, 0) for other in self.outcome.plan.run
        )
        most = min(left, self.outcome.plan.chunk_cap.get(job, left))
        return self.admission.lacks_blocks(self.engine.requests[job.id], most)

    def _why_no_chunk(self, request: Request) -> Reason:
        """Why a job got no token although tokens and memory were left."""
        if self.engine.need_mamba_block_aligned_split:
            return Reason.ALIGNMENT
        if request.has_encoder_inputs:
            return Reason.ENCODER
        return Reason.DRAFTS if self.engine.num_spec_tokens else Reason.UNEXPLAINED

    def _why_not_resumed(self, job: Job) -> Reason:
        """Why a swapped job of the plan's `run` got no step."""
        assert self.engine.swaps is not None
        if job in self.engine.swaps.copies.restoring:
            return Reason.REMOTE_KV
        if self.full:
            return Reason.BUDGET
        request = self.engine.requests[job.id]
        if self.filled.step.defers_prefills and request.num_computed_tokens < request.num_tokens - 1:
            return Reason.ENGINE_PAUSED
        return Reason.BLOCKS

    def _why_less(self, request: Request) -> Reason:
        """Why a job in prefill got fewer tokens than it needed although budget was left."""
        if self.engine.scheduler_config.long_prefill_token_threshold > 0:
            return Reason.LONG_PREFILL
        if self.engine.need_mamba_block_aligned_split:
            return Reason.ALIGNMENT
        if request.has_encoder_inputs:
            return Reason.ENCODER
        if self.engine.num_spec_tokens:
            return Reason.DRAFTS
        if request.num_computed_tokens + self.engine.num_sampled_tokens_per_step >= self.engine.max_model_len:
            return Reason.MODEL_LENGTH
        return Reason.UNEXPLAINED

    def _admit_differences(self) -> dict[Job, Reason]:
        """Jobs skipped before the last admission, and the job that ended admission."""
        differences: dict[Job, Reason] = {}
        admitted = set(self.outcome.admitted).difference(self.outcome.plan.prefetch)
        left_to_see = len(admitted)
        for job in self.outcome.plan.admit:
            if job in admitted:
                left_to_see -= 1
                continue
            why = self._why_not_admitted(job)
            differences[job] = why
            if not left_to_see and why not in _PASSED_OVER and job.id not in self.engine.waiting.passed_over:
                break
        return differences

    def _not_prefetched(self) -> dict[Job, Reason]:
        """The jobs of `prefetch` that stayed on the host: not ready, or without blocks or a slot."""
        admitted = set(self.outcome.admitted)
        return {
            job: self.admission.not_ready(self.engine.requests[job.id]) or Reason.BLOCKS
            for job in self.outcome.plan.prefetch
            if job not in admitted
        }

    def _why_not_admitted(self, job: Job) -> Reason:
        plan = self.outcome.plan
        request = self.engine.requests[job.id]
        if self.engine._pause_state != PauseState.UNPAUSED:
            return Reason.ENGINE_PAUSED
        if len(self.outcome.preempted) > len(plan.preempt):
            return Reason.PREEMPTION
        if self.filled.admission_closed:
            return Reason.BLOCKS
        connectors = self._connectors_reason(request)
        if connectors is not None:
            return connectors
        if self.full:
            return Reason.BUDGET
        if not self.admission.is_queued(request):
            return Reason.HELD
        not_ready = self.admission.not_ready(request)
        if not_ready is not None and not self._was_ready(job):
            return not_ready
        return self._why_refused(job)

    def _connectors_reason(self, request: Request) -> Reason | None:
        """What a connector did with a waiting request in this step: its KV is loading, or was not found yet."""
        if self.engine.transfers is None:
            return None
        if self.admission.not_ready(request) is Reason.REMOTE_KV:
            return Reason.REMOTE_KV
        return Reason.REMOTE_LOOKUP if self.engine.transfers.is_undecided(request) else None

    def _was_ready(self, job: Job) -> bool:
        """Whether a swapped job could have come back when vLLM looked at it, before others were prefetched."""
        return self.engine.swaps is not None and job in self.engine.swaps.found_tokens

    def _why_refused(self, job: Job) -> Reason:
        """Why a ready waiting job was not started although tokens were left."""
        request = self.engine.requests[job.id]
        if job is self.filled.step.cut:
            return Reason.WHOLE_PROMPT
        if len(set(self.outcome.admitted).difference(self.outcome.plan.prefetch)) >= self.filled.step.seats:
            return Reason.SEATS
        if request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
            return Reason.GRAMMAR  # compiled since the step was filled, or not at all
        if job.id in self.engine.waiting.passed_over and self._adapters_full(job):
            return Reason.LORA
        if self.filled.step.defers_prefills:
            return Reason.ENGINE_PAUSED
        return self.admission.misfit(request) or self._why_no_chunk(request)

    def _adapters_full(self, job: Job) -> bool:
        """Whether the step has all adapters that it may run, without the job's.

        vLLM 0.33 also counts adapters of planned requests that got no tokens.
        """
        if not job.lora_id:
            return False
        taken = {other.lora_id for other in (*self.outcome.tokens, *self.outcome.plan.run) if other.lora_id}
        return len(taken) >= self.engine.lora_config.max_loras and job.lora_id not in taken


def check_step(outcome: StepOutcome, engine: StepPort) -> None:
    """Assert that ledger and vLLM hold the same jobs in the same places, and that each difference has a reason."""
    ledger = engine.ledger
    ledger.check()
    running = [request.request_id for request in engine.running]
    queued = {request.request_id for request in engine.waiting}
    if engine.swaps is None:
        assert [job.id for job in ledger.residents] == running
        queued |= {request.request_id for request in engine.kv_holding_waiting}
    else:
        running += [request.request_id for request in engine.kv_holding_waiting]
        assert sorted(job.id for job in ledger.residents) == sorted(running)
        engine.swaps.check(ledger.residents)
    assert {*ledger.waiting, *ledger.swapped} == queued
    unexplained = [job for job, why in outcome.passed_over.items() if why is Reason.UNEXPLAINED]
    assert not unexplained, f"no reason why the engine differs from the plan for {unexplained}"
