"""From vLLM's request to a job."""

from __future__ import annotations

from math import nan

from vllm.v1.request import Request

from headway.core.hints import RequestHints, read_hints
from headway.core.job import Job
from headway.core.slo import Slo
from headway.errors import ConfigError

MOST_CLOCK_ERROR_S = 0.01
"""By so much the two clocks may drift apart before their difference is taken anew."""


class ArrivalClock:
    """Arrivals by the scheduler's clock; the front end stamps requests with the wall clock.

    The difference of the two clocks is kept while it holds, so requests keep the order of their stamps.
    """

    def __init__(self) -> None:
        self._ahead_s = nan

    def arrival_s(self, request: Request, now_s: float, wall_s: float) -> float:
        """When a request arrived; `now_s` and `wall_s` are this moment by either clock."""
        ahead_s = wall_s - now_s
        if not abs(ahead_s - self._ahead_s) <= MOST_CLOCK_ERROR_S:
            self._ahead_s = ahead_s
        stamped_s: float = request.arrival_time - self._ahead_s
        return min(now_s, stamped_s)


def take_in(
    request: Request, default_slo: Slo, arrival_s: float, *, is_streamed: bool
) -> tuple[Job, str | None]:
    """The job of a request, and the reason if this engine cannot serve it.

    `arrival_s` is by the scheduler's clock. vLLM's Python front end has checked the hints. A request that came another
    way, as from its Rust front end, is refused here if its hints are bad; a part of streamed input is refused too.
    """
    refusal = None
    hints = RequestHints(slo=default_slo)
    try:
        hints = read_hints(getattr(request.sampling_params, "extra_args", None), default_slo)
    except ConfigError as error:
        refusal = f"headway: {error}"
    if is_streamed:
        refusal = "headway: streaming input is not supported; send the whole prompt"
    job = Job(
        id=request.request_id,
        arrival_s=arrival_s,
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
