"""The record of one request, as it is written to disk and read by every table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headway.core.job import Job
from headway.core.slo import NO_TARGETS, Slo


class Outcome(StrEnum):
    """How a request ended; each request has exactly one outcome. A hand-off is a move, not an end."""

    FINISHED = "finished"
    SHED = "shed"
    EXPIRED = "expired"
    FAILED = "failed"
    CANCELLED = "cancelled"
    HANDED_OFF = "handed_off"


@dataclass(slots=True, kw_only=True)
class Record:
    """One request of a run. Times are seconds of the run's clock; None means that it never happened."""

    id: str
    arrival_s: float
    prompt_tokens: int
    outcome: Outcome
    output_tokens: int = 0
    tenant: str = ""
    program: str | None = None
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    predicted_output_tokens: float | None = None
    token_times_s: list[float] | None = None
    slo: Slo = NO_TARGETS
    instance: str = ""
    preemptions: int = 0
    swapped_blocks: int = 0
    recomputed_tokens: int = 0
    error: str | None = None


def record_of(job: Job, outcome: Outcome, now_s: float) -> Record:
    """The record of a job that ends now."""
    return Record(
        id=job.id,
        arrival_s=job.arrival_s,
        prompt_tokens=job.num_prompt_tokens,
        outcome=outcome,
        output_tokens=job.num_output_tokens,
        tenant=job.tenant,
        program=job.program,
        first_scheduled_s=job.first_scheduled_s,
        first_token_s=job.first_token_s,
        finished_s=now_s,
        predicted_output_tokens=job.predicted_output_tokens,
        slo=job.slo,
        preemptions=job.num_preemptions,
        swapped_blocks=job.swapped_blocks,
        recomputed_tokens=job.recomputed_tokens,
    )
