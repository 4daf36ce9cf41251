"""Server-sent events of an answer: passes the bytes on, and extracts what the gateway needs to know."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import msgspec

from headway.core.plan import Departure
from headway.errors import UpstreamError
from headway.gateway.http.stream_errors import MaybeError, error_of
from headway.http_client import NOT_AS_EXPECTED

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
MAX_LINE_BYTES = 64 * 2**20
"""A longer line is not accepted as an event."""

EVENT_NAME = b"event:"
_FIELD = b"data:"
_REASON = "headway:"
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens": ?([0-9]{1,9})')
_TOKEN_IDS = re.compile(rb'"token_ids": ?\[([0-9, ]*)\]')
_PROMPT_IDS = re.compile(rb'("prompt_token_ids": ?)\[([0-9, ]*)\]')
"""Inside JSON text these quotes would be escaped, so a match is never part of one. A single pattern for both fields
would be tried at each quote, and searches are most of the cost of a piece of a stream.
"""
_EVENT = re.compile(rb"data: ?\{")
_NO_CHOICES = re.compile(rb'"choices": ?\[\]')
_NEWLINE = ord("\n")
_COMMENT = re.compile(rb"^:.*\n(?:\r?\n)?", re.MULTILINE)
_END_WORD = b"[DONE]"


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    delta: dict[str, object] | None = None


class _Event(MaybeError):
    choices: list[_Choice] = msgspec.field(default_factory=list)


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_any = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class Halt:
    """An event that is not passed on: a policy's departure, or (`departure` None) an error of the instance.

    A departure with an unknown reason, from a newer instance, counts as an error.
    """

    departure: Departure | None
    message: str


class WholeAnswer(NamedTuple):
    """Facts about an answer in one piece: its number of tokens, and whether it will not come after all."""

    tokens: int
    halt: Halt | None


class Lines:
    """Splits a stream after whole lines, which end in a newline only. O(bytes), however they are cut."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = bytearray()

    def take(self, data: bytes) -> bytes:
        """The whole lines received so far. Raises UpstreamError for a line over MAX_LINE_BYTES."""
        if not self._rest and data.endswith(b"\n"):
            return data
        cut = data.rfind(b"\n") + 1
        if not cut:
            self._rest += data
            if len(self._rest) > MAX_LINE_BYTES:
                raise UpstreamError(f"a line of the stream is longer than {MAX_LINE_BYTES} bytes")
            return b""
        whole = bytes(self._rest) + data[:cut] if self._rest else data[:cut]
        self._rest[:] = data[cut:]
        return whole

    @property
    def rest(self) -> bytes:
        """The unfinished line."""
        return bytes(self._rest)


@dataclass(slots=True, kw_only=True)
class Events(ABC):
    """Processes a stream's bytes on their way to the client, and keeps what they said.

    `halt` is set once an event says that the answer will not continue; nothing after it is returned. `finished`: the
    finish reason has passed; `counted`: the token counts after it have; `done`: the end mark has. `parsed`: a parser of
    the instance transformed the text (reasoning, tool calls). `refused`: an error in the request has passed, which is
    for the client to see and no answer. `tokens` have passed, or events if token ids were not requested. `sent_ids` are
    the ids of the passed tokens, `prompt_ids` those of the prompt, both as JSON numbers with commas between, empty if
    they were not requested.
    """

    halt: Halt | None = None
    finished: bool = False
    done: bool = False
    counted: bool = False
    parsed: bool = False
    refused: bool = False
    tokens: int = 0
    sent_ids: bytearray = field(default_factory=bytearray)
    prompt_ids: bytes = b""
    _lines: Lines = field(default_factory=Lines)

    @property
    def rest(self) -> bytes:
        """What came after the last whole line, to be passed on if the stream ends well."""
        return self._lines.rest

    @abstractmethod
    def begins(self, data: bytes) -> bool:
        """Whether the result of `take` has more than a chat's role and comments.

        Raises UpstreamError if it has anything other than events of an answer.
        """

    @abstractmethod
    def take(self, data: bytes) -> bytes:
        """The part of the data that can be sent now: whole lines. Raises UpstreamError if it is no stream of events."""


@dataclass(slots=True, kw_only=True)
class TakenUpEvents(Events):
    """Events of an instance that continues a stream begun by another; read line by line, up to a halt."""

    def take(self, data: bytes) -> bytes:
        """See `Events`."""
        shown = bytearray()
        for line in self._lines.take(data).split(b"\n"):
            if self.halt is None:
                shown += self._line(line)
        return bytes(shown)

    def begins(self, data: bytes) -> bool:
        """True: the answer began long ago."""
        return True

    @property
    def rest(self) -> bytes:
        """Empty: an unfinished line is not passed on."""
        return b""

    @abstractmethod
    def _line(self, line: bytes) -> bytes:
        """The part of a line that goes to the client."""


@dataclass(slots=True, kw_only=True)
class PassedEvents(Events):
    """The first instance's events, unchanged except for token ids that the client did not request (`hide_ids`).

    `with_ids`: the instance was asked for token ids. If several answers share the stream, the first one that a policy
    ends halts all of them. `keep` receives what passes. O(bytes): events are decoded only if a few of their bytes
    suggest that they are special.
    """

    with_ids: bool = False
    hide_ids: bool = False
    keep: Callable[[bytes], None] | None = None

    def take(self, data: bytes) -> bytes:
        """See `Events`."""
        data = self._lines.take(data)
        if not data or self.halt is not None:
            return b""
        if b'"error"' in data or b'"headway:' in data:
            data = self._until_halt(data)
        if self.with_ids:
            data = self._without_ids(data)
            if b'"reasoning' in data or b'"tool_calls":' in data or b'"delta":{}' in data:
                self.parsed = True  # by a parser of the instance
        else:
            events = sum(begins_line(data, event.start()) for event in _EVENT.finditer(data))
            self.tokens += events - len(_NO_CHOICES.findall(data))
        self.finished = self.finished or b'"finish_reason":"' in data or b'"finish_reason": "' in data
        if self.finished and _NO_CHOICES.search(data):
            self.counted = True
        if _END_WORD in data:
            self.done = self.done or has_end_mark(data)
        if self.keep is not None:
            self.keep(data)
        return data

    def begins(self, data: bytes) -> bool:
        """See `Events`."""
        for line in data.split(b"\n"):
            if begins_answer(line):
                return True
            if not self.with_ids and payload(line) is not None:
                self.tokens -= 1
        return False

    def _without_ids(self, data: bytes) -> bytes:
        """Record the token ids, and remove them if they are to be hidden."""
        found = _TOKEN_IDS.findall(data)
        ids = b",".join(filter(None, found))
        if ids:
            self.sent_ids += b"," + ids if self.sent_ids else ids
            self.tokens += ids.count(b",") + 1
        if found and self.hide_ids:
            null = b'"token_ids": null' if b'"token_ids": [' in data else b'"token_ids":null'
            data = _TOKEN_IDS.sub(null, data)
        return self._without_prompt_ids(data)

    def _without_prompt_ids(self, data: bytes) -> bytes:
        """Record the prompt's token ids, which few events contain, and remove them if they are to be hidden."""
        while b'"prompt_token_ids":[' in data or b'"prompt_token_ids": [' in data:
            match = _PROMPT_IDS.search(data)
            if match is None:
                break
            self.prompt_ids = match[2]
            if not self.hide_ids:
                break
            data = b"%b%bnull%b" % (data[: match.start()], match[1], data[match.end() :])
        return data

    def _until_halt(self, data: bytes) -> bytes:
        """The lines before one that says the answer halts, if there is one."""
        place = 0
        for line in data.split(b"\n"):
            self.halt = halt_of(line)
            if self.halt is not None:
                return data[:place]
            self.refused = self.refused or refuses(line)
            place += len(line) + 1
        return data


def begins_line(data: bytes, place: int) -> bool:
    """Whether a line begins there. Text in an answer cannot look like this: JSON escapes newlines."""
    return place == 0 or data[place - 1] == _NEWLINE


def has_end_mark(lines: bytes) -> bool:
    """Whether one of a stream's last lines is the end mark."""
    at = lines.rfind(_END_WORD)
    start = lines.rfind(b"\n", 0, at) + 1
    return at >= 0 and lines[start:at].rstrip() == _FIELD


MOST_UNREAD_BYTES = 2**16


@dataclass(slots=True, kw_only=True)
class EventsKept(ABC):
    """Events that the client has. They are decoded when another answer is compared with them, or once there are many.

    Most answers end before: decoding each event costs more than passing it on. O(bytes).
    """

    _unread: bytearray = field(default_factory=bytearray)

    def keep(self, lines: bytes) -> None:
        """Whole lines went to the client. Raises UpstreamError as `read` does."""
        self._unread += lines
        if len(self._unread) > MOST_UNREAD_BYTES:
            self.read()

    def read(self) -> None:
        """Process all kept lines, each event with its name as its type. Raises UpstreamError for an invalid event."""
        unread, self._unread = bytes(self._unread), bytearray()
        name = b""
        for line in unread.split(b"\n"):
            found = payload(line)
            if line.startswith(EVENT_NAME):
                name = line[len(EVENT_NAME) :].strip()
            elif found is not None:
                event = read_event(found)
                self.note({"type": name.decode(), **event} if name else event)
                name = b""

    @abstractmethod
    def note(self, event: dict[str, Any]) -> None:
        """Record an event that went to the client."""


def comments_apart(lines: bytes) -> tuple[bytes, bytes]:
    """Split whole lines into comments, each with the empty line after it, and other lines. O(bytes)."""
    if not lines.startswith(b":") and b"\n:" not in lines:
        return b"", lines
    comments = b"".join(_COMMENT.findall(lines))
    return comments, _COMMENT.sub(b"", lines)


def payload(line: bytes) -> bytes | None:
    """The content of a `data:` line; None for any other line, and for the end mark."""
    if not line.startswith(_FIELD):
        return None
    found = line[len(_FIELD) :].strip()
    return None if found == b"[DONE]" else found


def is_end_mark(line: bytes) -> bool:
    """Whether a line is the end mark, with or without a newline."""
    return line.startswith(_FIELD) and payload(line) is None


def halt_of(line: bytes) -> Halt | None:
    """The halt that a line announces: an error, or a policy that ended one of the answers; None for other lines."""
    found = payload(line)
    if found is None or (b"headway:" not in found and b'"error"' not in found):
        return None
    event = _decode(found)
    error = error_of(event)
    if error is not None:
        return None if error.by_request else Halt(None, error.message)
    for choice in event.choices:
        reason = choice.stop_reason
        if choice.finish_reason == "error":
            return Halt(None, "an answer ended in an error")
        if choice.finish_reason == "abort" and isinstance(reason, str) and reason.startswith(_REASON):
            word = reason.removeprefix(_REASON)
            known = Departure(word) if word in set(Departure) else None
            return Halt(known, f"ended by the policy ({reason})")
    return None


def whole_of(body: bytes) -> WholeAnswer:
    """Read an answer in one piece. Raises UpstreamError if it is not an answer."""
    halt = halt_of(_FIELD + body)
    count = _COMPLETION_TOKENS.search(body)
    return WholeAnswer(int(count[1]) if count else 0, halt)


def refuses(line: bytes) -> bool:
    """Whether a line that does not halt the answer reports an error in the request."""
    found = payload(line)
    return found is not None and b'"error"' in found and error_of(_decode(found)) is not None


def begins_answer(line: bytes) -> bool:
    """Whether an event has more than the role with which a chat's stream begins.

    Raises UpstreamError if it is no event of an answer.
    """
    found = payload(line)
    if found is None:
        return is_end_mark(line)
    event = _decode(found)
    return not all(_role_only(choice) for choice in event.choices) or not event.choices


def _role_only(choice: _Choice) -> bool:
    """Whether a chat's choice has only a role: reasoning and tool calls may come in the same event."""
    delta = choice.delta
    if choice.finish_reason is not None or delta is None or delta.get("role") is None:
        return False
    return not any(value for name, value in delta.items() if name != "role")


def read_event(found: bytes) -> dict[str, Any]:
    """Decode an event. Raises UpstreamError if it is invalid."""
    return _decoded(_decode_any, found)


def _decode(found: bytes) -> _Event:
    return _decoded(_decode_event, found)


def _decoded(decode: Callable[[bytes], T], found: bytes) -> T:
    try:
        return decode(found)
    except NOT_AS_EXPECTED as error:
        raise UpstreamError(f"the stream holds something that is no event of an answer ({error})") from None
