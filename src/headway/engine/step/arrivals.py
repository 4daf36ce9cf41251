"""Turns vLLM's requests into jobs."""

from __future__ import annotations

from collections.abc import Iterable
from math import nan

from vllm.v1.request import Request

from headway.core.hints import RequestHints, read_hints
from headway.core.job import Job
from headway.core.slo import Slo
from headway.errors import ConfigError

MOST_CLOCK_ERROR_S = 0.01
"""The two clocks may drift apart by this much before their difference is measured again."""


class Arrivals:
    """Makes the jobs of one scheduler's requests. A request without targets gets `default_slo`.

    Front ends stamp requests with the wall clock, while jobs arrive by the scheduler's clock. The difference of the
    clocks is kept while it holds, so requests keep the order of their stamps. `waiting_elsewhere` holds the prompt
    tokens that wait at the hand-off instances, as the gateway said with the last request, at `told_elsewhere_s`.
    """

    def __init__(self, default_slo: Slo) -> None:
        self._default_slo = default_slo
        self._ahead_s = nan
        self._streaming: set[str] = set()
        self.waiting_elsewhere: list[int] = []
        self.told_elsewhere_s = 0.0

    def job_of(self, request: Request, now_s: float, wall_s: float) -> tuple[Job, str | None]:
        """The job of a request, and the reason if this engine cannot serve it.

        `now_s` and `wall_s` are the current time by either clock. vLLM's Python front end has checked the hints. For
        requests that came another way, such as from the Rust front end, bad hints are refused here.
        """
        refusal = None
        hints = RequestHints(slo=self._default_slo)
        try:
            hints = read_hints(getattr(request.sampling_params, "extra_args", None), self._default_slo)
        except ConfigError as error:
            refusal = f"headway: {error}"
        if hints.waiting_elsewhere is not None:
            self.waiting_elsewhere, self.told_elsewhere_s = list(hints.waiting_elsewhere), now_s
        if self._is_streamed(request):
            refusal = "headway: streaming input is not supported; send the whole prompt"
        job = Job(
            id=request.request_id,
            arrival_s=self._arrival_s(request, now_s, wall_s),
            num_prompt_tokens=request.num_prompt_tokens,
            max_output_tokens=hints.max_output_tokens or request.max_tokens,
            slo=hints.slo,
            priority=request.priority,
            tenant=hints.tenant,
            program=hints.program,
            predicted_length=hints.predicted_length,
            may_move=hints.may_move,
            lora_id=request.lora_request.lora_int_id if request.lora_request else 0,
        )
        return job, refusal

    def handed_off(self, job: Job) -> None:
        """Count a handed-off job where the fewest tokens wait, until the gateway sends the next numbers."""
        waiting = self.waiting_elsewhere
        if waiting:
            waiting[waiting.index(min(waiting))] += job.num_prompt_tokens

    def forget(self, request_ids: Iterable[str] | None) -> None:
        """Clients are gone (None: all of them), so the last part of their streamed input will not come."""
        if self._streaming:
            self._streaming.difference_update(self._streaming.copy() if request_ids is None else request_ids)

    def _arrival_s(self, request: Request, now_s: float, wall_s: float) -> float:
        ahead_s = wall_s - now_s
        if not abs(ahead_s - self._ahead_s) <= MOST_CLOCK_ERROR_S:
            self._ahead_s = ahead_s
        stamped_s: float = request.arrival_time - self._ahead_s
        return min(now_s, stamped_s)

    def _is_streamed(self, request: Request) -> bool:
        """Whether a request is a part of streamed input, which no policy can serve.

        All parts have one id. The last part is not marked: by itself it would be a prompt of one made-up token. After
        it the client is forgotten.
        """
        if request.resumable:
            self._streaming.add(request.request_id)
            return True
        if request.request_id not in self._streaming:
            return False
        self._streaming.remove(request.request_id)
        return True
