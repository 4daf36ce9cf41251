"""Patches of vLLM's front end that predict an answer's length, and learn it when the answer ends.

They wrap two functions of `AsyncLLM` (one in every API-server process) and two of its output processor. A prediction is
made before the request is queued, never inside a scheduler. It travels like a client's own hint, in `extra_args`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from copy import copy
from typing import Any

from headway.core.hints import LENGTH, length_hints
from headway.core.length_estimate import LengthEstimate
from headway.engine.lengths.forecasts import ForecastArrival
from headway.engine.lengths.service import LengthService, facts_of, open_service
from headway.engine.reason import reason_left
from headway.engine.vllm.plugin import is_headways

_ARRIVING: ContextVar[ForecastArrival | None] = ContextVar("headway_arriving", default=None)
"""The request whose `add_request` runs in this task. Its output states, several if n > 1, keep it."""


def opens_predictor(start: Callable[..., None]) -> Callable[..., None]:
    """Wrap a function that starts the engine: open the predictor afterwards.

    The engine's processes may be forks of this one, which must have no other threads at that moment.
    """

    def __init__(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        start(self, vllm_config, *args, **kwargs)
        if not is_headways(vllm_config):
            return
        try:
            with reason_left():
                self.headway_lengths = open_service(vllm_config, int(kwargs.get("client_index", 0)))
        except BaseException:
            self.shutdown()
            raise

    return __init__


def closes_predictor(stop: Callable[..., None]) -> Callable[..., None]:
    """Wrap the front end's shutdown: save what was learned."""

    def shutdown(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            stop(self, *args, **kwargs)
        finally:
            service = getattr(self, "headway_lengths", None)
            if service is not None:
                service.close()

    return shutdown


def predicts_lengths(add: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wrap `add_request`: predict the answer's length before the request is queued."""

    async def add_request(
        self: Any, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any
    ) -> Any:
        adapter = getattr(kwargs.get("lora_request"), "lora_name", "")
        arrival = _arrival(self, prompt, params, adapter)
        if arrival is None:
            return await add(self, request_id, prompt, params, *args, **kwargs)
        if arrival.estimate is not None:
            params = with_hints(params, arrival.estimate)
        mark = _ARRIVING.set(arrival)
        try:
            return await add(self, request_id, prompt, params, *args, **kwargs)
        finally:
            _ARRIVING.reset(mark)

    return add_request


def _arrival(front_end: Any, prompt: Any, params: Any, adapter: str) -> ForecastArrival | None:
    """Make the arrival of a request; None without a predictor, or with nothing to predict."""
    service: LengthService | None = getattr(front_end, "headway_lengths", None)
    if service is None:
        return None
    prefixes = service.prefixes
    facts = service.forecasts.read(lambda: facts_of(prompt, params, front_end, prefixes, adapter))
    if facts is None:
        return None
    if LENGTH in (params.extra_args or {}):
        return service.forecasts.unpredicted(facts)
    return service.forecasts.arrive(facts)


def with_hints(params: Any, estimate: LengthEstimate) -> Any:
    """Copy sampling parameters and add the estimate; other requests may share the given object."""
    hinted = copy(params)
    hinted.extra_args = {**(params.extra_args or {}), **length_hints(estimate)}
    return hinted


def keeps_arrival(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the making of an output state: it keeps the request's arrival until the request ends."""

    def from_new_request(cls: Any, *args: Any, **kwargs: Any) -> Any:
        state = make(cls, *args, **kwargs)
        state.headway_arrival = _ARRIVING.get()
        return state

    return from_new_request


def teaches_predictor(count: Callable[..., None]) -> Callable[..., None]:
    """Wrap the counting of finished requests: teach the predictor answers that ended by themselves or at their
    limit.
    """
    from vllm.v1.engine import FinishReason

    teaching = (FinishReason.STOP, FinishReason.LENGTH)

    def update_stats_from_finished(self: Any, req_state: Any, finish_reason: Any, *args: Any) -> None:
        count(self, req_state, finish_reason, *args)
        arrival: ForecastArrival | None = req_state.headway_arrival
        if arrival is not None and finish_reason in teaching:
            arrival.ended(req_state.detokenizer.num_output_tokens())

    return update_stats_from_finished
