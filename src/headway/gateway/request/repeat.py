"""Makes a broken stream again from its start, where the same words come again.

Tools, structured output, log probabilities, penalties and several answers depend on what an engine or a parser has seen
since the answer began, so token ids alone cannot continue them. A greedy or seeded request makes the same answer again:
what the client has is compared and left out, and the rest is passed on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headway.core.plan import Departure
from headway.gateway.http.events import (
    DONE,
    Events,
    EventsKept,
    Halt,
    TakenUpEvents,
    halt_of,
    is_end_mark,
    payload,
    read_event,
    refuses,
)
from headway.gateway.request.generation_request import GenerationRequest
from headway.http_client import NOT_AS_EXPECTED

Key = tuple[object, ...]

_DELTA_TEXTS = ("content", "reasoning", "reasoning_content", "refusal")
_LOGPROB_LISTS = ("content", "tokens", "token_logprobs", "top_logprobs", "text_offset")
_INEXACT = ("token_logprobs", "top_logprobs")
"""Figures whose last digits differ between computations."""
_HEAD = ("id", "created", "model")
_decode_number: Callable[[bytes | msgspec.Raw], float | None] = msgspec.json.Decoder(
    float | None, strict=False
).decode


def repeatable(request: GenerationRequest) -> bool:
    """Whether the request, sent again, makes the same answer: a stream that is greedy or has a seed."""
    return request.stream and not request.is_background and (is_greedy(request) or is_seeded(request))


def is_greedy(request: GenerationRequest) -> bool:
    """Whether the request asks for a temperature of 0, rather than for its model's default."""
    return _number(request, "temperature") == 0


def is_seeded(request: GenerationRequest) -> bool:
    """Whether the request asks for one particular sample."""
    return _number(request, "seed") is not None


def _number(request: GenerationRequest, name: str) -> float | None:
    raw = request.fields.get(name)
    if raw is None:
        return None
    try:
        return _decode_number(raw)
    except NOT_AS_EXPECTED:
        return None  # for the instance to refuse


@dataclass(slots=True)
class Transcript(EventsKept):
    """What the client has of an answer, field by field. Costs O(bytes of text)."""

    head: dict[str, Any] = field(default_factory=dict)
    pieces: defaultdict[Key, list[Any]] = field(default_factory=lambda: defaultdict(list))
    once: set[Key] = field(default_factory=set)

    def note(self, event: dict[str, Any]) -> None:
        """See `EventsKept`."""
        if not self.head:
            self.head = {name: event[name] for name in _HEAD if name in event}
        for choice in event.get("choices") or []:
            for key, holder, name in _growing(choice):
                self.pieces[key].append(holder[name])
            self.once.update(key for key, _, _ in _given_once(choice))
        if not event.get("choices"):
            self.once.add(("usage",))

    def repeated(self, tokens_before: int, _left: Departure | None) -> Events:
        """A reader for the events of the repeated answer, after processing the kept events."""
        return RepeatedEvents(transcript=self, tokens=tokens_before)

    def whole(self, key: Key) -> Any:
        """A field so far: a text or a list."""
        found = self.pieces[key]
        if len(found) > 1:
            joined = (
                "".join(found) if isinstance(found[0], str) else [each for part in found for each in part]
            )
            found[:] = [joined]
        return found[0] if found else ""


def _growing(choice: dict[str, Any]) -> Iterator[tuple[Key, dict[str, Any], str]]:
    """Yield the texts and lists of a choice to which each event adds: the key, and the position."""
    index = choice.get("index", 0)
    delta, logprobs = choice.get("delta") or {}, choice.get("logprobs") or {}
    places = [(choice, "text"), (choice, "token_ids"), *((delta, name) for name in _DELTA_TEXTS)]
    for holder, name in places:
        if isinstance(holder.get(name), str | list):
            yield (index, name), holder, name
    for name in _LOGPROB_LISTS:
        if isinstance(logprobs.get(name), list):
            yield (index, "logprobs", name), logprobs, name
    for call in delta.get("tool_calls") or []:
        function = call.get("function") or {}
        if isinstance(function.get("arguments"), str):
            yield (index, "arguments", call.get("index")), function, "arguments"


def _given_once(choice: dict[str, Any]) -> Iterator[tuple[Key, dict[str, Any], str]]:
    """Yield the fields of a choice that a single event sets for all."""
    index, delta = choice.get("index", 0), choice.get("delta") or {}
    calls = [(call, call.get("index")) for call in delta.get("tool_calls") or []]
    places = [(choice, "finish_reason", None), (choice, "stop_reason", None), (delta, "role", None)]
    places += [(call, name, number) for call, number in calls for name in ("id", "type")]
    places += [(call.get("function") or {}, "name", number) for call, number in calls]
    for holder, name, number in places:
        if holder.get(name) is not None:
            yield (index, name, number), holder, name


@dataclass(slots=True, kw_only=True)
class RepeatedEvents(TakenUpEvents):
    """The events of a repeated answer, without what the client has of it. See `events.Events`.

    If the answer comes out differently, `halt` says so. O(bytes).
    """

    transcript: Transcript
    _seen: dict[Key, int] = field(default_factory=dict)

    def _line(self, line: bytes) -> bytes:
        self.halt = halt_of(line)
        found = payload(line)
        if self.halt is not None or found is None:
            self.done = self.done or is_end_mark(line)
            return DONE if is_end_mark(line) else b""
        if refuses(line):
            self.refused = True
            return line + b"\n\n"
        event = read_event(found)
        if not self._is_news(event) or self.halt is not None:
            return b""
        event |= self.transcript.head
        self.transcript.note(event)
        choices = event.get("choices") or []
        self.tokens += bool(choices)
        self.counted = self.counted or not choices
        self.finished = self.finished or any(choice.get("finish_reason") is not None for choice in choices)
        return b"data: " + msgspec.json.encode(event) + b"\n\n"

    def _is_news(self, event: dict[str, Any]) -> bool:
        """Whether an event has anything that the client lacks; the rest is removed from it."""
        choices = event.get("choices") or []
        news = not choices and ("usage",) not in self.transcript.once
        for choice in choices:
            for key, holder, name in _growing(choice):
                news = self._is_new(key, holder, name) or news
            for key, holder, name in list(_given_once(choice)):
                if key in self.transcript.once:
                    holder[name] = None
                else:
                    news = True
        return news

    def _is_new(self, key: Key, holder: dict[str, Any], name: str) -> bool:
        """Remove from a field what the client has; return whether anything is left."""
        value, start = holder[name], self._seen.get(key, 0)
        self._seen[key] = start + len(value)
        known = self.transcript.whole(key)[start : start + len(value)]
        if _exact(name, value[: len(known)]) != _exact(name, known):
            self.halt = Halt(None, "the answer that was made again came out otherwise")
        holder[name] = value[len(known) :]
        return bool(holder[name])


def _exact(name: str, value: Any) -> Any:
    """The part of a value that must be equal in both answers."""
    if isinstance(value, str):
        return value
    if name in _INEXACT:
        return len(value)
    return [each.get("token") if isinstance(each, dict) else each for each in value]
