"""Plan against outcome: every difference gets a name."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import RequestStatus

from headway.core.job import Job, JobState
from headway.core.plan import Reason, StepOutcome


def compare(outcome: StepOutcome, scheduler: Any) -> dict[Job, Reason]:
    """Why each job of the plan got nothing or less than its share, asked before anything else has changed.

    vLLM grants only to its running requests: the plan's, the paused (capped at 0) and the admitted; so equal
    counts mean that every job of `run` got tokens. Candidates behind the one that ended admission are
    spares, not differences. O(1) then, plus one look at the blocks for the job that ended admission.
    """
    differences: dict[Job, Reason] = {}
    if _as_planned(outcome, scheduler):
        return differences
    full = outcome.num_tokens >= outcome.plan.token_budget
    if len(outcome.tokens) != len(outcome.plan.run) + len(outcome.admitted):
        ended = False
        for job in outcome.plan.run:
            if job not in outcome.tokens:
                differences[job] = _why_nothing(job, outcome, scheduler, full=full, ended=ended)
                ended |= differences[job] is Reason.BLOCKS
        unplanned = outcome.tokens.keys() - {*outcome.plan.run, *outcome.admitted}
        differences.update(dict.fromkeys(unplanned, Reason.UNEXPLAINED))
    differences.update(dict.fromkeys(scheduler.admission.over_adapters, Reason.LORA))
    if not full:
        differences.update(_short_chunks(outcome, scheduler))
    if not _ended_by_returned(differences, scheduler):
        differences.update(_admit_differences(outcome, scheduler, full=full))
    if outcome.plan.prefetch:
        differences.update(_not_prefetched(outcome, scheduler))
    for job in scheduler.view.fetching:
        if job.state is JobState.WAITING:
            looking_up = scheduler.transfers.is_undecided(scheduler.requests[job.id])
            differences[job] = Reason.REMOTE_LOOKUP if looking_up else Reason.REMOTE_KV
    return differences


def _as_planned(outcome: StepOutcome, scheduler: Any) -> bool:
    """Whether a step of nothing but decodes went to all whom the plan names: most steps of an engine that keeps up."""
    plan = outcome.plan
    if plan.admit or plan.prefetch or scheduler._inflight_prefills or scheduler.admission.over_adapters:
        return False
    return len(outcome.tokens) == len(plan.run)


def _ended_by_returned(differences: dict[Job, Reason], scheduler: Any) -> bool:
    """Whether a job that is back from the host did not fit: vLLM looks at those first, and then at nobody more."""
    if scheduler.swaps is None:
        return False
    copies = scheduler.swaps.copies
    return any(job in copies.returned and job not in copies.restoring for job in differences)


def _short_chunks(outcome: StepOutcome, scheduler: Any) -> dict[Job, Reason]:
    """Jobs still in prefill after a step that had tokens left for them."""
    short: dict[Job, Reason] = {}
    for request in scheduler._inflight_prefills:
        job = scheduler.jobs[request.request_id]
        if job in outcome.tokens and outcome.tokens[job] != outcome.plan.chunk_cap.get(job):
            short[job] = _why_less(request, scheduler)
    return short


def _why_nothing(job: Job, outcome: StepOutcome, scheduler: Any, *, full: bool, ended: bool) -> Reason:
    """Why a resident job of the plan got no token; `ended`: vLLM found no blocks for one before it, and stopped."""
    request = scheduler.requests[job.id]
    if scheduler._pause_state == PauseState.PAUSED_ALL:
        return Reason.ENGINE_PAUSED
    if job in outcome.preempted or scheduler.admission_closed:
        return Reason.BLOCKS
    if scheduler.swaps is not None and job in scheduler.swaps.copies.returned:
        return _why_not_resumed(job, outcome, scheduler, full=full)
    if _waits_for_frees(job, outcome, scheduler):
        return Reason.BLOCKS
    if request.num_in_flight_tokens:
        return Reason.IN_FLIGHT
    if full:
        return Reason.BUDGET
    if outcome.preempted or ended:
        return Reason.BLOCKS
    if scheduler.defers_prefills and request.is_prefill_chunk:
        return Reason.ENGINE_PAUSED
    return _why_no_chunk(request, scheduler)


def _waits_for_frees(job: Job, outcome: StepOutcome, scheduler: Any) -> bool:
    """Whether a job lacked blocks and vLLM preempted no victim: the blocks would not have come free at once."""
    if scheduler.transfers is None:
        return False
    left = outcome.plan.token_budget - sum(outcome.tokens.get(other, 0) for other in outcome.plan.run)
    most = min(left, outcome.plan.chunk_cap.get(job, left))
    lacks: bool = scheduler.admission.lacks_blocks(scheduler.requests[job.id], most)
    return lacks


def _why_no_chunk(request: Any, scheduler: Any) -> Reason:
    """Why a job got no token although tokens and memory were left."""
    if scheduler.need_mamba_block_aligned_split:
        return Reason.ALIGNMENT
    if request.has_encoder_inputs:
        return Reason.ENCODER
    return Reason.DRAFTS if scheduler.num_spec_tokens else Reason.UNEXPLAINED


def _why_not_resumed(job: Job, outcome: StepOutcome, scheduler: Any, *, full: bool) -> Reason:
    """Why a job of the plan that had left for the host got no step."""
    if job in scheduler.swaps.copies.restoring:
        return Reason.REMOTE_KV
    if full:
        return Reason.BUDGET
    request = scheduler.requests[job.id]
    if scheduler.defers_prefills and request.num_computed_tokens < request.num_tokens - 1:
        return Reason.ENGINE_PAUSED
    return Reason.BLOCKS


def _why_less(request: Any, scheduler: Any) -> Reason:
    """Why a job in prefill got fewer tokens than it needed although budget was left."""
    if scheduler.scheduler_config.long_prefill_token_threshold > 0:
        return Reason.LONG_PREFILL
    if scheduler.need_mamba_block_aligned_split:
        return Reason.ALIGNMENT
    if request.has_encoder_inputs:
        return Reason.ENCODER
    if scheduler.num_spec_tokens:
        return Reason.DRAFTS
    if request.num_computed_tokens + scheduler.num_sampled_tokens_per_step >= scheduler.max_model_len:
        return Reason.MODEL_LENGTH
    return Reason.UNEXPLAINED


def _admit_differences(outcome: StepOutcome, scheduler: Any, *, full: bool) -> dict[Job, Reason]:
    """Jobs passed over before the last admission, and the one that ended it."""
    differences: dict[Job, Reason] = {}
    admitted = set(outcome.admitted).difference(outcome.plan.prefetch)
    left_to_see = len(admitted)
    for job in outcome.plan.admit:
        if job in admitted:
            left_to_see -= 1
            continue
        why = _why_not_admitted(job, outcome, scheduler, full=full)
        differences[job] = why
        if not left_to_see and why not in _PASSED_OVER and job.id not in scheduler.waiting.passed_over:
            break
    return differences


def _not_prefetched(outcome: StepOutcome, scheduler: Any) -> dict[Job, Reason]:
    """The jobs of `prefetch` that stayed on the host: not ready, or without blocks or a slot."""
    admitted = set(outcome.admitted)
    return {
        job: scheduler.admission.not_ready(scheduler.requests[job.id]) or Reason.BLOCKS
        for job in outcome.plan.prefetch
        if job not in admitted
    }


_PASSED_OVER = frozenset(
    {
        *(Reason.GRAMMAR, Reason.REMOTE_KV, Reason.REMOTE_LOOKUP, Reason.RESTORES),
        *(Reason.STALE_OUTPUT, Reason.LORA, Reason.HELD),
    }
)
"""Reasons that skip a waiting job in every vLLM. Any other ends admission, unless vLLM put the job back and went on."""


def _why_not_admitted(job: Job, outcome: StepOutcome, scheduler: Any, *, full: bool) -> Reason:
    plan = outcome.plan
    request = scheduler.requests[job.id]
    if scheduler._pause_state != PauseState.UNPAUSED:
        return Reason.ENGINE_PAUSED
    if len(outcome.preempted) > len(plan.preempt):
        return Reason.PREEMPTION
    if scheduler.admission_closed:
        return Reason.BLOCKS
    connectors = _connectors_reason(request, scheduler)
    if connectors is not None:
        return connectors
    if full:
        return Reason.BUDGET
    if not scheduler.admission.is_queued(request):
        return Reason.HELD
    not_ready: Reason | None = scheduler.admission.not_ready(request)
    if not_ready is not None and not _was_ready(job, scheduler):
        return not_ready
    return _why_refused(job, outcome, scheduler)


def _connectors_reason(request: Any, scheduler: Any) -> Reason | None:
    """What a connector made of a waiting request in this step: its KV is being loaded, or is not found yet."""
    if scheduler.transfers is None:
        return None
    if scheduler.admission.not_ready(request) is Reason.REMOTE_KV:
        return Reason.REMOTE_KV
    return Reason.REMOTE_LOOKUP if scheduler.transfers.is_undecided(request) else None


def _was_ready(job: Job, scheduler: Any) -> bool:
    """Whether a swapped job could have come back when vLLM looked at it, before others were prefetched."""
    return scheduler.swaps is not None and job in scheduler.swaps.found_tokens


def _why_refused(job: Job, outcome: StepOutcome, scheduler: Any) -> Reason:
    """Why a ready waiting job was not started although tokens were left."""
    request = scheduler.requests[job.id]
    if job is scheduler.admission.cut:
        return Reason.WHOLE_PROMPT
    if len(set(outcome.admitted).difference(outcome.plan.prefetch)) >= scheduler.seats_planned:
        return Reason.SEATS
    if request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
        return Reason.GRAMMAR  # compiled since the step was filled, or not at all
    if job.id in scheduler.waiting.passed_over and _adapters_full(job, outcome, scheduler):
        return Reason.LORA
    if scheduler.defers_prefills:
        return Reason.ENGINE_PAUSED
    misfit: Reason | None = scheduler.admission.misfit(request)
    return misfit or _why_no_chunk(request, scheduler)


def _adapters_full(job: Job, outcome: StepOutcome, scheduler: Any) -> bool:
    """Whether the step's jobs have as many LoRA adapters as it may run, the job's not among them.

    vLLM 0.33 counts those of the plan too that got no tokens.
    """
    if not job.lora_id:
        return False
    taken = {other.lora_id for other in (*outcome.tokens, *outcome.plan.run) if other.lora_id}
    full: bool = len(taken) >= scheduler.lora_config.max_loras
    return full and job.lora_id not in taken
