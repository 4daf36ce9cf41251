"""Answers of APIs whose events have names: passed on unchanged, with what the gateway needs to know extracted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from headway.core.plan import Departure
from headway.errors import UpstreamError
from headway.gateway.http.events import EVENT_NAME, Events, Halt, WholeAnswer, is_end_mark, payload
from headway.gateway.http.stream_errors import ErrorFields, MaybeError, StreamError, error_of, judged
from headway.http_client import NOT_AS_EXPECTED

_BEFORE_TOKENS = frozenset({
    b"message_start", b"ping", b"content_block_start", b"response.created", b"response.queued",
    b"response.in_progress", b"response.output_item.added", b"response.content_part.added",
})  # fmt: skip
_ENDS = frozenset({b"message_stop", b"response.completed", b"response.incomplete"})
_TELLING = frozenset({b"message_delta", b"response.completed", b"response.failed", b"error"})
"""The events that are decoded; for all others the name suffices."""
_COUNTS = b"message_delta"
_MESSAGE = "message"
"""The type of Anthropic's answer in one piece."""


class _Usage(msgspec.Struct):
    output_tokens: int | None = None


class _StopReason(msgspec.Struct):
    stop_reason: str | None = None


class _Response(msgspec.Struct):
    usage: _Usage | None = None
    error: ErrorFields | None = None


class _NamedEvent(MaybeError):
    """The decoded fields of an event or of a whole answer."""

    type: str = ""
    usage: _Usage | None = None
    delta: _StopReason | str | None = None
    stop_reason: str | None = None
    status: str | None = None
    response: _Response = msgspec.field(default_factory=_Response)


_decode_event = msgspec.json.Decoder(_NamedEvent).decode


@dataclass(slots=True, kw_only=True)
class NamedEvents(Events):
    """The events of `/v1/responses` and `/v1/messages`. See `events.Events`; tokens are counted by their events.

    In these APIs vLLM does not say that a policy ended a request. An answer without a token, or a message without a
    stop reason, counts as ended for the reason `left`; if `left` is None, for an instance without a policy, it passes
    unchanged. `keep` receives what passes. O(bytes).
    """

    left: Departure | None = None
    keep: Callable[[bytes], None] | None = None
    _begun: bool = False
    _name: bytes = b""
    _held: bytes = b""
    """The name line of an event whose data have not arrived: both are passed on, or neither."""

    def take(self, data: bytes) -> bytes:
        """See `events.Events`."""
        shown = bytearray()
        for line in self._lines.take(data).splitlines(keepends=True):
            if line.startswith(EVENT_NAME):
                self._held, self._name = line, line[len(EVENT_NAME) :].strip()
                continue
            if line.startswith(b"data:"):
                self._note(line)
            if self.halt is not None:
                break
            if line.startswith(b"data:"):
                self._name = b""
            shown += self._held + line
            self._held = b""
        passed = bytes(shown)
        if self.keep is not None:
            self.keep(passed)
        return passed

    def begins(self, data: bytes) -> bool:
        """See `events.Events`."""
        return self._begun

    @property
    def rest(self) -> bytes:
        """See `events.Events`."""
        return self._held + self._lines.rest

    def _note(self, line: bytes) -> None:
        """Process an event's data."""
        found = payload(line)
        if found is None:
            self.done = self.done or is_end_mark(line)
            return
        is_read = self._name in _TELLING or not self._name or b'"error"' in found
        event = _read(found) if is_read else _NamedEvent()
        error = error_of(event)
        name = b"error" if error is not None else self._name or event.type.encode()
        if error is not None:
            self._fails(error)
        elif name in _TELLING:
            self._judge(name, event)
        if not name:
            raise UpstreamError("the stream holds an event without a name")
        if name in _BEFORE_TOKENS or self.halt is not None:
            return
        self._begun = True
        self.tokens += name.endswith(b"delta") and name != _COUNTS
        self.done = self.done or name in _ENDS

    def _fails(self, error: StreamError) -> None:
        """Halt on an error of the instance; an error in the request is passed to the client."""
        self.halt = None if error.by_request else Halt(None, error.message)
        self.refused = self.done = error.by_request

    def _judge(self, name: bytes, event: _NamedEvent) -> None:
        if name == b"response.failed":
            self._fails(judged(event.response.error or ErrorFields("the response failed")))
        elif name == _COUNTS and isinstance(event.delta, _StopReason):
            self.halt = _ended(event.usage, self.left, unexplained=event.delta.stop_reason is None)
        elif not self._begun:
            self.halt = _ended(event.response.usage, self.left)


def named_whole(body: bytes, left: Departure | None) -> WholeAnswer:
    """Read an answer in one piece; `left` as in `NamedEvents`. Raises UpstreamError if it is not an answer."""
    answer = _read(body)
    error = error_of(answer) or (answer.status == "failed" and judged(ErrorFields("the response failed")))
    if error:
        return WholeAnswer(0, Halt(None, error.message))
    count = None if answer.usage is None else answer.usage.output_tokens
    unexplained = answer.type == _MESSAGE and answer.stop_reason is None
    return WholeAnswer(count or 0, _ended(answer.usage, left, unexplained=unexplained))


def _ended(usage: _Usage | None, left: Departure | None, *, unexplained: bool = False) -> Halt | None:
    """Whether a policy ended it: every answer has a token, if only the one that ends it, and a message has a stop
    reason.
    """
    if left is None or usage is None or (usage.output_tokens != 0 and not unexplained):
        return None
    return Halt(left, "ended by the policy")


def _read(found: bytes) -> _NamedEvent:
    try:
        return _decode_event(found)
    except NOT_AS_EXPECTED as error:
        raise UpstreamError(f"the answer holds what is no event of one ({error})") from None
