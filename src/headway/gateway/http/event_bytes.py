"""Server-sent events on their way through: bytes in, the same bytes out, and what the gateway needs to know of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from headway.errors import UpstreamError
from headway.gateway.http.events import Events, begins_answer, halt_of, payload, refuses

MAX_LINE_BYTES = 64 * 2**20
"""A line longer than this is no event."""

_IDS = re.compile(rb'"(prompt_)?token_ids":( ?)\[([0-9, ]*)\]')
"""Inside a JSON text these quotes would be escaped, so a match is never part of one."""
_EVENT = re.compile(rb"^data: ?\{", re.MULTILINE)
_NO_CHOICES = re.compile(rb'"choices": ?\[\]')
_END_MARK = re.compile(rb"^data: ?\[DONE\]", re.MULTILINE)
"""An answer may hold the same words, but never at the beginning of a line: JSON escapes newlines."""


class Lines:
    """Cuts a stream after whole lines, which end in a newline and nothing else. O(bytes), however they were cut."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = bytearray()

    def take(self, data: bytes) -> bytes:
        """The whole lines there are by now. Raises UpstreamError for one longer than MAX_LINE_BYTES."""
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
        """The line that has no end yet."""
        return bytes(self._rest)


@dataclass(slots=True, kw_only=True)
class PassedEvents(Events):
    """The first instance's events, as they are but for token ids that the client did not ask for (`hide_ids`).

    `with_ids`: the instance was asked for token ids. Several answers may share the stream: the first that a policy
    ends halts all of them. O(bytes); events are decoded only where a few bytes of them say that they may be special.
    """

    with_ids: bool = False
    hide_ids: bool = False
    _lines: Lines = field(default_factory=Lines)

    def take(self, data: bytes) -> bytes:
        """See `Events`."""
        data = self._lines.take(data)
        if not data or self.halt is not None:
            return b""
        if b'{"error"' in data or b'"headway:' in data:
            data = self._until_halt(data)
        if self.with_ids:
            data = _IDS.sub(self._note_ids, data)
            if b'"reasoning' in data or b'"tool_calls":' in data or b'"delta":{}' in data:
                self.parsed = True
        else:
            self.tokens += len(_EVENT.findall(data)) - len(_NO_CHOICES.findall(data))
        if b'"finish_reason":"' in data or b'"finish_reason": "' in data:
            self.finished = True
        if self.finished and _NO_CHOICES.search(data):
            self.counted = True
        if b"[DONE]" in data and _END_MARK.search(data):
            self.done = True
        return data

    def begins(self, data: bytes) -> bool:
        """See `Events`."""
        for line in data.split(b"\n"):
            if begins_answer(line):
                return True
            if not self.with_ids and payload(line) is not None:
                self.tokens -= 1
        return False

    @property
    def rest(self) -> bytes:
        """See `Events`."""
        return self._lines.rest

    def _note_ids(self, match: re.Match[bytes]) -> bytes:
        ids = match[3]
        if match[1]:
            self.prompt_ids = ids
        elif ids:
            self.sent_ids += b"," + ids if self.sent_ids else ids
            self.tokens += ids.count(b",") + 1
        if not self.hide_ids:
            return match[0]
        return b'"%btoken_ids":%bnull' % (match[1] or b"", match[2])

    def _until_halt(self, data: bytes) -> bytes:
        """The lines before one that says the answer halts, if there is such a one."""
        place = 0
        for line in data.split(b"\n"):
            self.halt = halt_of(line)
            if self.halt is not None:
                return data[:place]
            self.refused = self.refused or refuses(line)
            place += len(line) + 1
        return data
