"""Makes a broken stream of responses or messages again: events that the client has are compared and left out.

Objects in these events have ids, which each instance draws anew: the client keeps those of the first instance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headway.core.plan import Departure
from headway.gateway.http.events import Events, EventsKept, Halt, payload, read_event
from headway.gateway.http.named_events import NamedEvents

_IDS = ("id", "item_id", "call_id")
_PLACE = ("output_index", "content_index", "summary_index", "index")
_NUMBER = "sequence_number"
_PING = "ping"

Place = tuple[object, ...]


@dataclass(slots=True)
class _Segment:
    """One event, or all consecutive deltas of the same text (`is_text`)."""

    place: Place
    is_text: bool
    text: str = ""


@dataclass(slots=True)
class NamedTranscript(EventsKept):
    """What the client has of an answer, in order. Costs O(bytes of its events)."""

    segments: list[_Segment] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    numbers: int = 0

    def note(self, event: dict[str, Any]) -> None:
        """See `EventsKept`."""
        self.numbers += 1
        if event.get("type") == _PING:
            return
        self.ids += [name for name in _ids_in(event) if name not in self.ids]
        place, text = _place_of(event), _text_of(event)
        last = self.segments[-1] if self.segments else None
        if text is not None and last is not None and last.is_text and last.place == place:
            last.text += text[2]
        else:
            self.segments.append(_Segment(place, text is not None, "" if text is None else text[2]))

    def repeated(self, tokens_before: int, left: Departure | None) -> Events:
        """A reader for the events of the repeated answer; `left` as in `NamedEvents`."""
        return RepeatedNamedEvents(transcript=self, tokens=tokens_before, inner=NamedEvents(left=left))


def _ids_in(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            if name in _IDS and isinstance(each, str):
                yield each
            else:
                yield from _ids_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from _ids_in(each)


def _place_of(event: dict[str, Any]) -> Place:
    delta = event.get("delta")
    kind = delta.get("type") if isinstance(delta, dict) else None
    return event.get("type"), kind, *(event.get(name) for name in _PLACE)


def _text_of(event: dict[str, Any]) -> tuple[dict[str, Any], str, str] | None:
    """The text that a delta adds: its object, its name there, and the text."""
    if not str(event.get("type")).endswith("delta"):
        return None
    holder, delta = event, event.get("delta")
    names = ["delta"]
    if isinstance(delta, dict):
        holder, names = delta, ["text", "thinking", "partial_json", "signature"]
    found = next((name for name in names if isinstance(holder.get(name), str)), None)
    return None if found is None else (holder, found, holder[found])


@dataclass(slots=True, kw_only=True)
class RepeatedNamedEvents(Events):
    """The events of a repeated answer, without what the client has of it. See `events.Events`."""

    transcript: NamedTranscript
    inner: NamedEvents
    _at: int = 0
    _within: int = 0
    _new_ids: list[str] = field(default_factory=list)

    def take(self, data: bytes) -> bytes:
        """See `Events`."""
        shown = bytearray()
        for line in self.inner.take(data).split(b"\n"):
            found = payload(line)
            if found is not None and self.halt is None:
                shown += self._event(read_event(found))
        self.halt = self.halt or self.inner.halt
        self.done, self.refused = self.inner.done and self.halt is None, self.inner.refused
        return bytes(shown)

    def begins(self, data: bytes) -> bool:
        """True: a repeated answer began long ago."""
        return True

    @property
    def rest(self) -> bytes:
        """Empty: an unfinished line is not passed on."""
        return b""

    def _event(self, event: dict[str, Any]) -> bytes:
        self._new_ids += [name for name in _ids_in(event) if name not in self._new_ids]
        if event.get("type") == _PING or not self._is_news(event) or self.halt is not None:
            return b""
        if _NUMBER in event:
            event[_NUMBER] = self.transcript.numbers
        body = msgspec.json.encode(event)
        for new, old in zip(self._new_ids, self.transcript.ids, strict=False):
            body = body.replace(msgspec.json.encode(new), msgspec.json.encode(old))
        event = read_event(body)
        self.transcript.note(event)
        self._go_to_end()
        self.tokens += _text_of(event) is not None
        return b"event: " + str(event["type"]).encode() + b"\ndata: " + body + b"\n\n"

    def _go_to_end(self) -> None:
        """Everything recorded has come again; the last text may continue."""
        segments = self.transcript.segments
        goes_on = segments[-1].is_text
        self._at, self._within = len(segments) - goes_on, len(segments[-1].text) * goes_on

    def _is_news(self, event: dict[str, Any]) -> bool:
        """Whether an event has anything that the client lacks; its text is cut to that. Halts if it differs from
        what was sent.
        """
        segments, text, place = self.transcript.segments, _text_of(event), _place_of(event)
        if self._at < len(segments) and self._is_over(segments[self._at], place):
            self._at, self._within = self._at + 1, 0
        if self._at >= len(segments):
            return True
        sent = segments[self._at]
        known = sent.text[self._within :]
        if sent.place != place or (text is not None and not _one_begins(text[2], known)):
            self.halt = Halt(None, "the answer that was made again came out otherwise")
            return False
        if text is None:
            self._at += 1
            return False
        holder, name, said = text
        self._within += min(len(said), len(known))
        holder[name] = said[len(known) :]
        if holder[name] and self._at < len(segments) - 1:
            self.halt = Halt(None, "the answer that was made again came out longer")
        return bool(holder[name])

    def _is_over(self, sent: _Segment, place: Place) -> bool:
        """Whether a text has come again completely, and another event follows; an event without text is over at
        once.
        """
        return sent.is_text and self._within == len(sent.text) and sent.place != place


def _one_begins(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)
