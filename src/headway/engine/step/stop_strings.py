"""An answer that ends on a stop string has come to its own end, which vLLM's engine hears of as an abort.

Stop strings are looked for where the text is, in the front end; the engine is then told to abort the request, as if its
client had gone (vLLM 0.32, EngineCore.abort_requests: "TBD whether we propagate that"). Such an answer is finished: it
counts in records, and its length is learned from. So for each of these ids the front end adds a mark to the list of
those to abort, which is an id that no request has, and stock's scheduler ignores.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextvars import ContextVar
from typing import Any

_MARK = "headway:stopped:"

_STOPPED: ContextVar[Collection[str]] = ContextVar("headway_stopped", default=())
"""Those that the last outputs ended on a stop string, in the task that handles outputs: it aborts them next."""


def notes_stopped(process: Callable[..., Any]) -> Callable[..., Any]:
    """Note, in the task that handles outputs, which of them ended on a stop string."""

    def process_outputs(self: Any, *args: Any, **kwargs: Any) -> Any:
        processed = process(self, *args, **kwargs)
        _STOPPED.set(frozenset(processed.reqs_to_abort))
        return processed

    return process_outputs


def marks_sent(send: Callable[..., Any]) -> Callable[..., Any]:
    """Add the marks where the front end, asynchronous or not, sends aborts to another process."""
    from vllm.v1.engine import EngineCoreRequestType

    def _send_input(self: Any, request_type: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        if request_type is EngineCoreRequestType.ABORT:
            request = marked(request)
        return send(self, request_type, request, *args, **kwargs)

    return _send_input


def marks_handed_over(abort: Callable[..., None]) -> Callable[..., None]:
    """Add the marks where the engine is in the front end's own process."""

    def abort_requests(self: Any, request_ids: list[str]) -> None:
        abort(self, marked(request_ids))

    return abort_requests


def marked(request_ids: Sequence[str]) -> Sequence[str]:
    """These ids, and the mark of each that has just ended on a stop string."""
    stopped = _STOPPED.get()
    marks = [_MARK + request_id for request_id in request_ids if request_id in stopped]
    return [*request_ids, *marks] if marks else request_ids


def stopped_among(request_ids: Iterable[str]) -> Collection[str]:
    """The ids whose marks are among these."""
    return {each.removeprefix(_MARK) for each in request_ids if each.startswith(_MARK)}
