"""Sends one request to one instance, passes the answer on as it arrives, and tells how that ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from io import BytesIO

import aiohttp

from headway.core.plan import Departure
from headway.errors import UpstreamError
from headway.gateway.http.asgi_client import EVENT_STREAM, Client, client_headers
from headway.gateway.http.events import Events, Halt, WholeAnswer, comments_apart, is_end_mark
from headway.gateway.request.interrupt import Cut, Interrupt, WaitCut
from headway.http_client import FIRST_SERVER_FAULT, NO_ANSWER, named

_OK = 200
_LARGE_BYTES = 2**20
"""Bodies above this are sent piece by piece, so that others are served in between."""
_MAX_ANSWER_BYTES = 256 * 2**20
_BODY_END_S = 5.0
_STALE_SHOWS_S = 1.0
"""A connection that was closed before the request came breaks within this time."""
_UNSENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""Errors after which no server has the request."""


class End(Enum):
    """How an attempt ended."""

    PASSED = "the client has the whole answer"
    REFUSED = "the client has the instance's error (4xx)"
    LEFT = "a policy ended it before its first token"
    BROKEN = "the instance broke, or answered what is no answer"


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended, and why.

    `garbage`: the instance sent an invalid answer; `refused`: it does not accept the request; `fell`: it broke off or
    failed, for which the request may be the cause. `body`: the answer, if it was kept.
    """

    end: End
    reason: str = ""
    departure: Departure | None = None
    garbage: bool = False
    refused: bool = False
    fell: bool = False
    fault: Fault | None = None
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Fault:
    """An instance's own error (5xx), complete: the client gets it if no instance serves the request."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


@dataclass(frozen=True, slots=True)
class Call:
    """What is sent to an instance."""

    url: str
    headers: list[tuple[str, str]]
    body: bytes


@dataclass(slots=True)
class Attempt:
    """Sends a call and passes its answer on.

    Events before the first token are held back: until then another instance can be asked. Comments, with which an
    instance keeps connections alive, pass immediately, and with the first of them the head of a stream. `begun`: the
    client has part of the answer, so only the same answer may follow. `on_tokens` receives the number of tokens in each
    piece; `first_events` are the first events that the client got. Raises WaitCut if the interrupt cuts it short, and
    then closes the instance's connection.
    """

    session: aiohttp.ClientSession
    client: Client
    interrupt: Interrupt
    on_tokens: Callable[[int], None]
    first_events: bytes = b""
    begun: bool = False

    async def run(
        self, call: Call, events: Events, *, stream: bool, read_whole: Callable[[bytes], WholeAnswer]
    ) -> Ending:
        """Send the call once. `stream`: whether events were requested; `read_whole` reads an answer in one piece."""

        async def pass_on(response: aiohttp.ClientResponse) -> Ending:
            if response.headers.get("content-type", "").lower().startswith(EVENT_STREAM):
                if not stream:
                    return Ending(End.BROKEN, "a stream of events, which was not asked for", garbage=True)
                return await self._stream(response, events)
            if self.begun:
                return await self._no_continuation(response)
            return await self._whole(response, read_whole)

        return await self._ask(call, pass_on)

    async def keep(self, call: Call, read_whole: Callable[[bytes], WholeAnswer]) -> Ending:
        """Send the call once, and keep the answer, which is in one piece, from the client: see `Ending.body`."""

        async def judge(response: aiohttp.ClientResponse) -> Ending:
            body = await self._read(response)
            if response.status != _OK:
                return Ending(End.REFUSED, f"HTTP {response.status}", refused=True)
            found = _judged(body, read_whole)
            return found if isinstance(found, Ending) else Ending(End.PASSED, body=body)

        return await self._ask(call, judge)

    async def _ask(self, call: Call, take: Callable[[aiohttp.ClientResponse], Awaitable[Ending]]) -> Ending:
        """Send the call once, and `take` the answer unless it is the instance's own error."""
        response: aiohttp.ClientResponse | None = None
        try:
            response = await self._send(call)
            if response.status >= FIRST_SERVER_FAULT:
                return await self._fault(response)
            return await take(response)
        except NO_ANSWER as error:
            return _broken(error)
        except UpstreamError as error:
            return Ending(End.BROKEN, str(error), garbage=True)
        finally:
            if response is not None:
                response.close()

    async def _send(self, call: Call) -> aiohttp.ClientResponse:
        """The head of the answer. A kept connection may have been closed meanwhile: then the call is sent again on
        another.

        That shows at once; a later break means that the request had been received.
        """
        loop = asyncio.get_running_loop()
        sent_s = loop.time()
        try:
            return await self._post(call)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            if isinstance(error, _UNSENT) or loop.time() - sent_s > _STALE_SHOWS_S:
                raise
            try:
                return await self._post(call)
            except _UNSENT:
                raise error from None  # the request had been sent, so the instance that got it is gone

    async def _post(self, call: Call) -> aiohttp.ClientResponse:
        body = call.body if len(call.body) <= _LARGE_BYTES else BytesIO(call.body)
        return await self.interrupt.wait(
            self.session.post(call.url, data=body, headers=call.headers, allow_redirects=False)
        )

    async def _fault(self, response: aiohttp.ClientResponse) -> Ending:
        body = await self._read(response)
        fault = Fault(response.status, client_headers(response), body)
        return Ending(End.BROKEN, _shown(response.status, body), fell=True, fault=fault)

    async def _whole(
        self, response: aiohttp.ClientResponse, read_whole: Callable[[bytes], WholeAnswer]
    ) -> Ending:
        """Read, check and pass on an answer in one piece."""
        body = await self._read(response)
        served = response.status == _OK
        if served:
            found = _judged(body, read_whole)
            if isinstance(found, Ending):
                return found
            if self.client.began:
                return Ending(
                    End.BROKEN, "an answer in one piece, where a stream was asked for", garbage=True
                )
            self.on_tokens(found.tokens)
        self.begun = True
        await self.client.answer(response.status, _sized(client_headers(response), body), body)
        return Ending(End.PASSED if served else End.REFUSED, f"HTTP {response.status}")

    async def _no_continuation(self, response: aiohttp.ClientResponse) -> Ending:
        """Reject an answer in one piece where a stream was to continue."""
        body = await self._read(response)
        served = response.status == _OK
        return Ending(End.BROKEN, _shown(response.status, body), garbage=served, refused=not served)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        parts, size = [], 0
        while data := await self.interrupt.wait(response.content.readany()):
            parts.append(data)
            size += len(data)
            if size > _MAX_ANSWER_BYTES:
                raise UpstreamError(f"the answer is longer than {_MAX_ANSWER_BYTES} bytes")
        return b"".join(parts)

    async def _stream(self, response: aiohttp.ClientResponse, events: Events) -> Ending:
        """Pass on an answer in events. Whatever ends it too early, the client has whole events."""
        wait, read, client = self.interrupt.wait, response.content.readany, self.client
        if not self.begun:
            ending = await self._until_begun(response, events)
            if ending is not None:
                return ending
        tokens = events.tokens
        try:
            while not events.halt and (data := await wait(read())):
                out = events.take(data)
                if events.tokens != tokens:
                    self.on_tokens(events.tokens - tokens)
                    tokens = events.tokens
                if out:
                    await client.pass_on(out)
        except WaitCut as cut:
            if not events.done or cut.reason is not Cut.GONE:
                raise
            await _drained(response)  # many clients leave at the end mark, and have their answer then
        if events.halt is not None:
            return _left(events.halt, begun=True)
        if not events.done and not is_end_mark(events.rest):
            return Ending(End.BROKEN, "the stream ended without its end mark", fell=True)
        await client.end(events.rest)
        return Ending(End.REFUSED, "an error in the request") if events.refused else Ending(End.PASSED)

    async def _until_begun(self, response: aiohttp.ClientResponse, events: Events) -> Ending | None:
        """Hold back all events up to the first token, then send them together. Returns an ending if that comes
        first.
        """
        held, head = b"", _unsized(client_headers(response))
        while data := await self.interrupt.wait(response.content.readany()):
            out = events.take(data)
            begun = bool(out) and events.begins(out)
            if events.halt is not None and not begun:
                return _left(events.halt)
            if begun:
                self.begun, self.first_events = True, held + out
                self.on_tokens(events.tokens)
                await self.client.stream(response.status, head, self.first_events)
                return None
            comments, rest = comments_apart(out)
            held += rest
            if comments:
                await self.client.stream(response.status, head, comments)
        return Ending(End.BROKEN, "the stream ended before its first token", fell=True)


async def _drained(response: aiohttp.ClientResponse) -> None:
    """Read the rest of the body after the end mark, so that the connection can be kept."""
    with suppress(*NO_ANSWER):
        async with asyncio.timeout(_BODY_END_S):
            while await response.content.readany():
                pass


def _judged(body: bytes, read_whole: Callable[[bytes], WholeAnswer]) -> WholeAnswer | Ending:
    """Read an answer in one piece, or tell how its attempt ended if it is invalid."""
    if not body.lstrip().startswith(b"{"):
        return Ending(End.BROKEN, f"an answer that is no JSON object: {body[:80]!r}", garbage=True)
    found = read_whole(body)
    return found if found.halt is None else _left(found.halt)


def _left(halt: Halt, *, begun: bool = False) -> Ending:
    """The end of an answer that halts: a stream that had `begun` is broken, whatever ended it."""
    end = End.BROKEN if begun or halt.departure is None else End.LEFT
    return Ending(end, halt.message, departure=halt.departure, fell=halt.departure is None)


def _shown(status: int, body: bytes) -> str:
    """Describe an answer: its status, and how its body begins."""
    return f"HTTP {status}: {body[:200].decode(errors='replace')}"


def _broken(error: Exception) -> Ending:
    garbage = isinstance(error, aiohttp.ClientResponseError)
    fell = not garbage and not isinstance(error, _UNSENT)
    return Ending(End.BROKEN, named(error), garbage=garbage, fell=fell)


def _sized(headers: list[tuple[bytes, bytes]], body: bytes) -> list[tuple[bytes, bytes]]:
    return [*_unsized(headers), (b"content-length", b"%d" % len(body))]


def _unsized(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers without a length, since the client gets a different number of bytes of a gathered stream."""
    return [each for each in headers if each[0] != b"content-length"]
