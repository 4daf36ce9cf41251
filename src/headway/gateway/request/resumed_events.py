"""The events of the rest of an answer, made to continue those of the first instance."""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.gateway.http.event_bytes import Lines
from headway.gateway.http.events import DONE, Events, halt_of, is_end_mark, payload, read_event
from headway.gateway.request.resume import Continuation


@dataclass(slots=True, kw_only=True)
class ResumedEvents(Events):
    """The rest of a stream: decoded, and made to look like what came before. See `events.Events`."""

    continuation: Continuation
    _lines: Lines = field(default_factory=Lines)

    def __post_init__(self) -> None:
        self.sent_ids = bytearray(self.continuation.sent_ids)
        self.prompt_ids = self.continuation.prompt_ids
        self.tokens = self.continuation.sent

    def take(self, data: bytes) -> bytes:
        """See `Events`."""
        shown = bytearray()
        for line in self._lines.take(data).split(b"\n"):
            if self.halt is None:
                shown += self._line(line)
        return bytes(shown)

    def begins(self, data: bytes) -> bool:
        """It has begun long ago."""
        return True

    @property
    def rest(self) -> bytes:
        """Nothing: what has no end is not passed on."""
        return b""

    def _line(self, line: bytes) -> bytes:
        self.halt = halt_of(line)
        if self.halt is not None:
            return b""
        found = payload(line)
        if found is None:
            self.done = self.done or is_end_mark(line)
            return DONE if is_end_mark(line) else b""
        event = read_event(found)
        if "error" in event:
            self.refused = True
            return line + b"\n\n"
        choices = event.get("choices") or []
        self.counted = self.counted or not choices
        for choice in choices:
            ids = choice.get("token_ids") or []
            self.tokens += len(ids)
            text = ",".join(map(str, ids)).encode()
            self.sent_ids += b"," + text if self.sent_ids and text else text
            self.finished = self.finished or choice.get("finish_reason") is not None
        return self.continuation.render(event)
