"""How the end of a request reaches its client, the engine, and the records file."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.request import Request, RequestStatus

from headway.core.record import Outcome, Record
from headway.errors import RecordError
from headway.results.records import RecordWriter

if TYPE_CHECKING:
    from headway.engine.step.ports import StepPort

logger = logging.getLogger(__name__)


ENDED_AS = {
    RequestStatus.FINISHED_STOPPED: Outcome.FINISHED,
    RequestStatus.FINISHED_LENGTH_CAPPED: Outcome.FINISHED,
    RequestStatus.FINISHED_REPETITION: Outcome.FINISHED,
    RequestStatus.FINISHED_IGNORED: Outcome.FAILED,
    RequestStatus.FINISHED_ERROR: Outcome.FAILED,
    RequestStatus.FINISHED_ABORTED: Outcome.CANCELLED,
}
"""A request's final status in vLLM -> the outcome, unless Headway knows better."""


class FinalOutputs:
    """Last outputs of ended requests. A queue, since with two steps in flight the second plan precedes the first
    output.
    """

    def __init__(self) -> None:
        self._queue: deque[tuple[int, EngineCoreOutput]] = deque()

    def add(self, request: Request, reason: str, *, failed: bool) -> None:
        """Queue the last output of a request that just finished, with the reason for its client.

        The client of a failed request learns over HTTP only that it failed, so the reason goes to the log.
        """
        if failed:
            logger.error("request %s fails: %s", request.request_id, reason)
        output = EngineCoreOutput(
            request_id=request.request_id,
            new_token_ids=[],
            finish_reason=FinishReason.ERROR if failed else FinishReason.ABORT,
            stop_reason=reason,
            events=request.take_events(),
            trace_headers=request.trace_headers,
        )
        self._queue.append((request.client_index, output))

    def deliver(self, outputs: dict[int, EngineCoreOutputs]) -> None:
        """Move all queued outputs into a step's outputs, by client."""
        while self._queue:
            client_index, output = self._queue.popleft()
            outputs.setdefault(client_index, EngineCoreOutputs()).outputs.append(output)


_MARK = "headway:stopped:"

_STOPPED: ContextVar[Collection[str]] = ContextVar("headway_stopped", default=())
"""Requests whose last outputs ended on a stop string, in the task that handles outputs and aborts them next."""


def notes_stopped(process: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap output processing: note which requests ended on a stop string."""

    def process_outputs(self: Any, *args: Any, **kwargs: Any) -> Any:
        processed = process(self, *args, **kwargs)
        _STOPPED.set(frozenset(processed.reqs_to_abort))
        return processed

    return process_outputs


def marks_sent(send: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the sending of aborts to another process: add the marks."""
    from vllm.v1.engine import EngineCoreRequestType

    def _send_input(self: Any, request_type: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        if request_type is EngineCoreRequestType.ABORT:
            request = marked(request)
        return send(self, request_type, request, *args, **kwargs)

    return _send_input


def marks_handed_over(abort: Callable[..., None]) -> Callable[..., None]:
    """Wrap aborts inside the front end's own process: add the marks."""

    def abort_requests(self: Any, request_ids: list[str]) -> None:
        abort(self, marked(request_ids))

    return abort_requests


def marked(request_ids: Sequence[str]) -> Sequence[str]:
    """These ids, and the mark of each request that just ended on a stop string."""
    stopped = _STOPPED.get()
    marks = [_MARK + request_id for request_id in request_ids if request_id in stopped]
    return [*request_ids, *marks] if marks else request_ids


def stopped_among(request_ids: Iterable[str]) -> Collection[str]:
    """The request ids whose marks are among these."""
    return {each.removeprefix(_MARK) for each in request_ids if each.startswith(_MARK)}


REASON_PREFIX = "headway:"


class NoTokens(list[int]):
    """An empty list of tokens that is true.

    vLLM's stream generators omit an output without text and tokens while nothing was sent, including its finish reason.
    The client of a request that was shed while waiting would see its stream end without a reason. The generators test
    the list's truth value, so a true empty list is enough.
    """

    def __bool__(self) -> bool:
        return True


def shows_endings(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap vLLM's API server so that it passes on the end of a request that a policy ended before its first token."""

    def new_completion_output(self: Any, token_ids: Any, finish_reason: Any, stop_reason: Any) -> Any:
        output = make(self, token_ids, finish_reason, stop_reason)
        by_policy = isinstance(stop_reason, str) and stop_reason.startswith(REASON_PREFIX)
        if by_policy and not output.token_ids and not output.text:
            output.token_ids = NoTokens()
        return output

    return new_completion_output


class ServedRecords:
    """One engine's records file. On a full disk it ends with one error in the log; serving continues."""

    def __init__(self, path: Path) -> None:
        self._writer: RecordWriter | None = RecordWriter(path)

    def append(self, record: Record) -> bool:
        """Write one record; return whether it was written. After one failure nothing more is written."""
        if self._writer is None:
            return False
        try:
            self._writer.append(record)
        except RecordError as error:
            logger.error("%s; no record is written from here on", error)
            self.close()
            return False
        return True

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(RecordError):  # what could not be written cannot be flushed either
                writer.close()


def records_of(engine: StepPort) -> ServedRecords | None:
    """Open the records file that the settings ask for. Each of several data-parallel engines has its own file.

    An engine of a dense model knows only its index, not that there are others; so the first one keeps the plain name.
    """
    if engine.settings.records is None:
        return None
    path, parallel = Path(engine.settings.records), engine.parallel_config
    index = parallel.data_parallel_index
    if parallel.data_parallel_size > 1 or index:
        path = path.with_stem(f"{path.stem}-dp{index}")
    return ServedRecords(path)
