"""Events of an answer: which begin it, and which say that it will not go on."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from headway.core.plan import Departure
from headway.errors import UpstreamError
from headway.http_client import FIRST_SERVER_FAULT

DONE = b"data: [DONE]\n\n"

_FIELD = b"data:"
_REASON = "headway:"
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens": ?([0-9]{1,9})')


class _Delta(msgspec.Struct):
    role: str | None = None
    content: object = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    delta: _Delta | None = None


class _Error(msgspec.Struct):
    message: str = ""
    code: int | str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    error: _Error | str | None = None


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_any = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class Halt:
    """An event that is not passed on: a policy's departure, or (`departure` None) an error of the instance.

    A departure for a reason that only a newer instance knows is taken for an error.
    """

    departure: Departure | None
    message: str


class Whole(NamedTuple):
    """What an answer in one piece says: how many tokens it has, and whether it will not come after all."""

    tokens: int
    halt: Halt | None


@dataclass(slots=True, kw_only=True)
class Events(ABC):
    """What a stream's bytes go through on their way to the client, and what they have said so far.

    `halt` is set once an event says that the answer will not go on; nothing after it is returned. `finished`: its
    finish reason has passed; `counted`: the token counts after that have; `done`: the end mark has. `parsed`: a
    parser of the instance made something of the text (reasoning, tool calls). `refused`: an error in the request has
    passed, which is the client's to see and no answer. `tokens` have passed, or events where
    token ids were not asked for. `sent_ids` are the ids of the tokens that passed, `prompt_ids` those of the prompt,
    both as JSON numbers with commas between, empty where they were not asked for.
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

    @property
    @abstractmethod
    def rest(self) -> bytes:
        """What came after the last whole line, to be passed on when the stream ends well."""

    @abstractmethod
    def begins(self, data: bytes) -> bool:
        """Whether what `take` returned has more than a chat's role and comments.

        Raises UpstreamError if it has what is no event of an answer.
        """

    @abstractmethod
    def take(self, data: bytes) -> bytes:
        """What of it can be sent on now: whole lines. Raises UpstreamError for what is no stream of events."""


def payload(line: bytes) -> bytes | None:
    """What a `data:` line holds; None for any other line, and for the end mark."""
    if not line.startswith(_FIELD):
        return None
    found = line[len(_FIELD) :].strip()
    return None if found == b"[DONE]" else found


def is_end_mark(line: bytes) -> bool:
    """Whether a line is the end mark, whole or without the newline that a server forgot."""
    return line.startswith(_FIELD) and payload(line) is None


def halt_of(line: bytes) -> Halt | None:
    """The halt that a line announces: an error, or a policy that ended one of the answers; None for any other line."""
    found = payload(line)
    if found is None or (b"headway:" not in found and b'"error"' not in found):
        return None
    event = _decode(found)
    if event.error is not None:
        return _fault(event.error)
    for choice in event.choices:
        reason = choice.stop_reason
        if choice.finish_reason == "abort" and isinstance(reason, str) and reason.startswith(_REASON):
            return Halt(_departure(reason.removeprefix(_REASON)), f"ended by the policy ({reason})")
    return None


def whole_of(body: bytes) -> Whole:
    """What an answer in one piece says. Raises UpstreamError for what is no answer."""
    halt = halt_of(_FIELD + body) if b'"headway:' in body else None
    count = _COMPLETION_TOKENS.search(body)
    return Whole(int(count[1]) if count else 0, halt)


def refuses(line: bytes) -> bool:
    """Whether a line that does not halt the answer says that the request was in error."""
    found = payload(line)
    return found is not None and b'"error"' in found and _decode(found).error is not None


def _departure(word: str) -> Departure | None:
    """Why a policy ended a request; None for a reason that is not known here."""
    return Departure(word) if word in set(Departure) else None


def begins_answer(line: bytes) -> bool:
    """Whether an event is more than the role that a chat's stream begins with.

    Raises UpstreamError if it is no event of an answer.
    """
    found = payload(line)
    if found is None:
        return is_end_mark(line)
    event = _decode(found)
    return not all(_role_only(choice) for choice in event.choices) or not event.choices


def _role_only(choice: _Choice) -> bool:
    delta = choice.delta
    return choice.finish_reason is None and delta is not None and delta.role is not None and not delta.content


def _fault(error: _Error | str) -> Halt | None:
    """An error of the instance's own; an error in the request is the client's to see."""
    if isinstance(error, str):
        return Halt(None, error)
    code = error.code
    if isinstance(code, int) and code < FIRST_SERVER_FAULT:
        return None
    return Halt(None, error.message)


def read_event(found: bytes) -> dict[str, Any]:
    """An event whole. Raises UpstreamError for what is none."""
    try:
        return _decode_any(found)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UpstreamError(f"the stream holds what is no event of an answer ({error})") from None


def _decode(found: bytes) -> _Event:
    try:
        return _decode_event(found)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UpstreamError(f"the stream holds what is no event of an answer ({error})") from None
