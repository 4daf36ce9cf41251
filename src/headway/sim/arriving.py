"""From a request of a trace to the job that a scheduler sees, and to the next one's when it moves."""

from __future__ import annotations

from headway.core.job import Job
from headway.core.length_estimate import LengthEstimate
from headway.errors import TraceError
from headway.traces import TraceRequest


def job_of(
    request: TraceRequest, default_max_output_tokens: int, predicted_length: LengthEstimate | None = None
) -> Job:
    """The job of a request that comes now; its true length stays behind.

    Its limit is the request's or the workload's, since one made to fit would give the length away. Raises
    TraceError for an answer longer than that.
    """
    limit = request.max_output_tokens or default_max_output_tokens
    if request.output_tokens > limit:
        raise TraceError(
            f"request {request.id} has {request.output_tokens} output tokens; accepted: up to {limit}, "
            "the limit of requests that declare none"
        )
    return Job(
        id=request.id,
        arrival_s=request.arrival_s,
        num_prompt_tokens=request.input_tokens,
        max_output_tokens=limit,
        slo=request.slo,
        priority=request.priority,
        tenant=request.tenant,
        predicted_length=predicted_length,
        prefix_blocks=request.prefix_blocks,
    )


def moved_job(job: Job, now_s: float) -> Job:
    """A job that its instance gave up unstarted, as a new one for the next: with what is left of its targets, and no
    third place to go.
    """
    return Job(
        id=job.id,
        arrival_s=now_s,
        num_prompt_tokens=job.num_prompt_tokens,
        max_output_tokens=job.max_output_tokens,
        slo=job.slo.after(now_s - job.arrival_s),
        priority=job.priority,
        tenant=job.tenant,
        predicted_length=job.predicted_length,
        lora_id=job.lora_id,
        may_move=False,
        prefix_blocks=job.prefix_blocks,
    )
