"""Tokens that came back with a step's output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.engine import EngineCoreOutputs

from headway.core.job import Job, JobState

if TYPE_CHECKING:
    from headway.engine.step.scheduler import PolicyScheduler

_NEWEST_DECODE_SHARE = 0.01
"""Weight of the newest decode in the running mean of what one with drafts brings."""


def follow_sampled(outputs: dict[int, EngineCoreOutputs], scheduler: PolicyScheduler, now_s: float) -> None:
    """Count the tokens that came back; the requests they ended are gone from the table already."""
    jobs, resident, drafts = scheduler.jobs, JobState.RESIDENT, scheduler.num_spec_tokens
    for engine_outputs in outputs.values():
        for output in engine_outputs.outputs:
            job = jobs.get(output.request_id)
            if job is None:
                continue
            if job.first_token_s is not None and job.state is resident and not drafts:
                job.num_output_tokens += len(output.new_token_ids)
            elif output.new_token_ids:
                _follow_rarer(job, len(output.new_token_ids), scheduler, now_s)


def _follow_rarer(job: Job, num_tokens: int, scheduler: PolicyScheduler, now_s: float) -> None:
    """A first token, a token of a job preempted meanwhile, or one beside drafts that may be refused."""
    is_first = scheduler.ledger.sampled(job, num_tokens, now_s)
    if not is_first:
        view = scheduler.view
        view.decoded_tokens += (num_tokens - view.decoded_tokens) * _NEWEST_DECODE_SHARE
    if scheduler.num_spec_tokens and job.state is JobState.RESIDENT:
        job.num_computed_tokens = scheduler.requests[job.id].num_computed_tokens
    if is_first or job.state is not JobState.RESIDENT:
        scheduler.guard.touch(job)
