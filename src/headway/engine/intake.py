"""From vLLM's request to a job."""

from __future__ import annotations

from vllm.v1.request import Request

from headway.core.hints import RequestHints, read_hints
from headway.core.job import Job
from headway.core.slo import Slo
from headway.errors import ConfigError


def take_in(
    request: Request, default_slo: Slo, now_s: float, wall_s: float, *, is_streamed: bool
) -> tuple[Job, str | None]:
    """The job of a request, and the reason if this engine cannot serve it.

    `now_s` is the scheduler's clock at this moment, `wall_s` the wall clock. The API server has checked the hints; a
    request that came another way with bad hints is refused here. A part of streamed input is refused too.
    """
    refusal = None
    hints = RequestHints(slo=default_slo)
    try:
        hints = read_hints(getattr(request.sampling_params, "extra_args", None), default_slo)
    except ConfigError as error:
        refusal = f"headway: {error}"
    if is_streamed:
        refusal = "headway: streaming input is not supported; send the whole prompt"
    # The API server stamped the arrival with the wall clock; steps have their own.
    age_s = max(0.0, wall_s - request.arrival_time)
    job = Job(
        id=request.request_id,
        arrival_s=now_s - age_s,
        num_prompt_tokens=request.num_prompt_tokens,
        max_output_tokens=hints.max_output_tokens or request.max_tokens,
        slo=hints.slo,
        priority=request.priority,
        tenant=hints.tenant,
        predicted_length=hints.predicted_length,
        may_move=hints.may_move,
        lora_id=request.lora_request.lora_int_id if request.lora_request else 0,
    )
    return job, refusal
