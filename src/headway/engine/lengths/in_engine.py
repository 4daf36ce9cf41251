"""Answer lengths predicted in the engine's process, for a front end that predicts none.

vLLM's Rust front end runs no Python, and the front end of an untested vLLM may lack the patched names. Predicting from
a prompt takes milliseconds, so a thread does it beside the steps. Until then the policy treats the request as one
without a prediction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import BoundedSemaphore
from typing import Any

from vllm.v1.request import Request

from headway.core.hints import LENGTH
from headway.core.job import Job
from headway.core.length_estimate import LengthEstimate
from headway.engine.lengths.forecasts import ForecastArrival
from headway.engine.lengths.service import LengthService, facts_of_ids, open_service
from headway.engine.step.guard import GuardedPolicy
from headway.engine.step.ports import StepPort
from headway.engine.vllm.plugin import has_rust_front_end
from headway.engine.vllm.seams import LENGTHS, NOTICING, works

MAX_QUEUED = 16
"""Requests that may wait for the thread; any beyond get no prediction."""


def engine_lengths_of(engine: StepPort) -> EngineLengths | None:
    """Make the predictions of a scheduler's requests; None if its settings want none, or its front end makes them."""
    if engine.settings.length_predictor() is None:
        return None
    if not has_rust_front_end() and works(NOTICING) and works(LENGTHS):
        return None
    index = engine.parallel_config.data_parallel_index
    service = open_service(engine.vllm_config, index, learner="engine")
    if service is None:
        return None
    tokenizer = getattr(engine.structured_output_manager, "tokenizer", None)
    return EngineLengths(service, engine.max_model_len, tokenizer)


class EngineLengths:
    """The predictions of one engine. Requests go in, `tell` passes estimates on, and finished answers teach.

    All work runs in order on one thread. Requests beyond `MAX_QUEUED` get no prediction.
    """

    def __init__(self, service: LengthService, max_model_len: int, tokenizer: Any) -> None:
        self._service = service
        self._max_model_len = max_model_len
        self._tokenizer = tokenizer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headway-engine-lengths")
        self._room = BoundedSemaphore(MAX_QUEUED)
        self._arrivals: dict[str, Future[ForecastArrival | None]] = {}
        self._made: deque[tuple[str, LengthEstimate]] = deque()

    def arrived(self, request: Request) -> None:
        """Queue a request for a prediction, unless its client states a length."""
        if not self._room.acquire(blocking=False):
            self._service.forecasts.refuse()
            return
        arriving = self._thread.submit(self._arrive, request)
        arriving.add_done_callback(lambda _: self._room.release())
        self._arrivals[request.request_id] = arriving

    def tell(self, jobs: Mapping[str, Job], guard: GuardedPolicy) -> None:
        """Tell a policy the lengths predicted since the last call."""
        while self._made:
            request_id, estimate = self._made.popleft()
            job = jobs.get(request_id)
            if job is not None:
                job.predicted_length = estimate
                guard.touch(job)

    def ended(self, request_id: str, output_tokens: int | None) -> None:
        """A request ended; `output_tokens` is its length if the answer ended by itself or at its limit."""
        arriving = self._arrivals.pop(request_id, None)
        if arriving is None:
            return
        if output_tokens is None:
            arriving.cancel()
        else:
            self._thread.submit(_teach, arriving, output_tokens)

    def close(self) -> None:
        """Finish the queued work and save what was learned."""
        self._thread.shutdown(wait=True)
        self._service.close()

    def _arrive(self, request: Request) -> ForecastArrival | None:
        forecasts = self._service.forecasts
        params = request.sampling_params
        facts = forecasts.read(
            lambda: facts_of_ids(
                request.prompt_token_ids,
                params,
                self._service.prefixes,
                max_model_len=self._max_model_len,
                tokenizer=self._tokenizer,
                adapter=request.lora_request.lora_name if request.lora_request else "",
            )
        )
        if facts is None:
            return None
        if LENGTH in (params.extra_args or {}):
            return forecasts.unpredicted(facts)
        arrival = forecasts.arrive(facts)
        if arrival.estimate is not None:
            self._made.append((request.request_id, arrival.estimate))
        return arrival


def _teach(arriving: Future[ForecastArrival | None], output_tokens: int) -> None:
    arrival = arriving.result()
    if arrival is not None:
        arrival.ended(output_tokens)
