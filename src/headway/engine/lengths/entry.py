"""Where vLLM's front end predicts how long an answer will be, and hears how long it was.

Two places of `AsyncLLM` (one in every API-server process) and two of its output processor. A prediction is made
before the request is queued, never inside a scheduler, and goes the way a client's own would: in `extra_args`.
"""

from __future__ import annotations

from contextvars import ContextVar
from copy import copy
from functools import wraps
from typing import Any

from headway.core.hints import LENGTH, length_hints
from headway.core.length_estimate import LengthEstimate
from headway.engine.launching.last_words import reason_left
from headway.engine.lengths.facts import facts_of
from headway.engine.lengths.forecasts import Arrival
from headway.engine.lengths.service import LengthService, open_service

_ARRIVING: ContextVar[Arrival | None] = ContextVar("headway_arriving", default=None)
"""The request whose `add_request` is running in this task; its output states, several if n > 1, keep it."""


def predict_at_entry() -> None:
    """Have vLLM's asynchronous front end predict lengths, where its settings say so."""
    from vllm.v1.engine.async_llm import AsyncLLM

    if getattr(AsyncLLM.add_request, "predicts_lengths", False):
        return
    _start_and_stop(AsyncLLM)
    _predict_arrivals(AsyncLLM)
    _learn_from_endings()


def _start_and_stop(front_end: type[Any]) -> None:
    """The predictor is there once the engine is, and saved when the front end shuts down.

    Not before: the engine's processes may be forks of this one, which had better have no other threads then.
    """
    start, stop = front_end.__init__, front_end.shutdown

    @wraps(start)
    def __init__(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        start(self, vllm_config, *args, **kwargs)
        try:
            with reason_left():
                self.headway_lengths = open_service(vllm_config, int(kwargs.get("client_index", 0)))
        except BaseException:
            stop(self)
            raise

    @wraps(stop)
    def shutdown(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            stop(self, *args, **kwargs)
        finally:
            service = getattr(self, "headway_lengths", None)
            if service is not None:
                service.close()

    front_end.__init__ = __init__
    front_end.shutdown = shutdown


def _predict_arrivals(front_end: type[Any]) -> None:
    add = front_end.add_request

    @wraps(add)
    async def add_request(
        self: Any, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any
    ) -> Any:
        adapter = getattr(kwargs.get("lora_request"), "lora_name", "")
        arrival = await _arrival(self, prompt, params, adapter)
        if arrival is None:
            return await add(self, request_id, prompt, params, *args, **kwargs)
        if arrival.estimate is not None:
            params = with_hints(params, arrival.estimate)
        mark = _ARRIVING.set(arrival)
        try:
            return await add(self, request_id, prompt, params, *args, **kwargs)
        finally:
            _ARRIVING.reset(mark)

    add_request.predicts_lengths = True  # type: ignore[attr-defined]
    front_end.add_request = add_request


async def _arrival(front_end: Any, prompt: Any, params: Any, adapter: str) -> Arrival | None:
    """The request with what is predicted of it; None where nobody predicts, or there is nothing to predict."""
    service: LengthService | None = getattr(front_end, "headway_lengths", None)
    if service is None:
        return None
    prefixes = service.prefixes
    facts = service.forecasts.read(lambda: facts_of(prompt, params, front_end, prefixes, adapter))
    if facts is None:
        return None
    if LENGTH in (params.extra_args or {}):
        return service.forecasts.unpredicted(facts)
    return await service.forecasts.arrive(facts)


def with_hints(params: Any, estimate: LengthEstimate) -> Any:
    """Sampling parameters that carry the estimate too; the given ones may be shared by other requests."""
    hinted = copy(params)
    hinted.extra_args = {**(params.extra_args or {}), **length_hints(estimate)}
    return hinted


def _learn_from_endings() -> None:
    """The output state of a request keeps its arrival, and goes with it however the request ends."""
    from vllm.v1.engine import FinishReason
    from vllm.v1.engine.output_processor import OutputProcessor, RequestState

    make = RequestState.from_new_request.__func__
    count = OutputProcessor._update_stats_from_finished
    teaching = (FinishReason.STOP, FinishReason.LENGTH)

    @wraps(make)
    def from_new_request(cls: Any, *args: Any, **kwargs: Any) -> Any:
        state = make(cls, *args, **kwargs)
        state.headway_arrival = _ARRIVING.get()
        return state

    @wraps(count)
    def update_stats_from_finished(self: Any, req_state: Any, finish_reason: Any, *args: Any) -> None:
        count(self, req_state, finish_reason, *args)
        arrival: Arrival | None = req_state.headway_arrival
        if arrival is not None and finish_reason in teaching:
            arrival.ended(req_state.detokenizer.num_output_tokens())

    RequestState.from_new_request = classmethod(from_new_request)
    OutputProcessor._update_stats_from_finished = update_stats_from_finished
