"""An answer that ends on a stop string has come to its own end, which vLLM's engine hears of as an abort.

Stop strings are looked for where the text is, in the front end; the engine is then told to abort the request, as if its
client had gone (vLLM 0.32, EngineCore.abort_requests: "TBD whether we propagate that"). Such an answer is finished: it
counts in records, and its length is learned from. So for each of these ids the front end adds a mark to the list of
those to abort, which is an id that no request has, and stock's scheduler ignores.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextvars import ContextVar
from functools import wraps
from typing import Any

_MARK = "headway:stopped:"

_STOPPED: ContextVar[Collection[str]] = ContextVar("headway_stopped", default=())
"""Those that the last outputs ended on a stop string, in the task that handles outputs: it aborts them next."""


def tell_of_stop_strings() -> None:
    """Have vLLM's front end, asynchronous or not, mark the ids of those that end on a stop string."""
    from vllm.v1.engine.core_client import AsyncMPClient, InprocClient, SyncMPClient
    from vllm.v1.engine.output_processor import OutputProcessor

    if getattr(OutputProcessor.process_outputs, "tells_of_stop_strings", False):
        return
    _note_stopped(OutputProcessor)
    _mark_sent(AsyncMPClient)
    _mark_sent(SyncMPClient)
    _mark_handed_over(InprocClient)


def _note_stopped(processor: type[Any]) -> None:
    process = processor.process_outputs

    @wraps(process)
    def process_outputs(self: Any, *args: Any, **kwargs: Any) -> Any:
        processed = process(self, *args, **kwargs)
        _STOPPED.set(frozenset(processed.reqs_to_abort))
        return processed

    process_outputs.tells_of_stop_strings = True  # type: ignore[attr-defined]
    processor.process_outputs = process_outputs


def _mark_sent(client: type[Any]) -> None:
    from vllm.v1.engine import EngineCoreRequestType

    send = client._send_input

    @wraps(send)
    def _send_input(self: Any, request_type: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        if request_type is EngineCoreRequestType.ABORT:
            request = marked(request)
        return send(self, request_type, request, *args, **kwargs)

    client._send_input = _send_input


def _mark_handed_over(client: type[Any]) -> None:
    abort = client.abort_requests

    @wraps(abort)
    def abort_requests(self: Any, request_ids: list[str]) -> None:
        abort(self, marked(request_ids))

    client.abort_requests = abort_requests


def marked(request_ids: Sequence[str]) -> Sequence[str]:
    """These ids, and the mark of each that has just ended on a stop string."""
    stopped = _STOPPED.get()
    marks = [_MARK + request_id for request_id in request_ids if request_id in stopped]
    return [*request_ids, *marks] if marks else request_ids


def stopped_among(request_ids: Iterable[str]) -> Collection[str]:
    """The ids whose marks are among these."""
    return {each.removeprefix(_MARK) for each in request_ids if each.startswith(_MARK)}
