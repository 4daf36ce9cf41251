"""The client's side of a request, in terms of ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import aiohttp
from starlette.types import Receive, Scope, Send
from yarl import URL

from headway.core.hints import HINT_HEADERS, header_text
from headway.gateway.http.client_limits import HELD
from headway.gateway.http.refusal import GatewayError, bad_request, error_as_event, stalled, too_large
from headway.http_client import root_of

Headers = Sequence[tuple[bytes, bytes]]

KEY_TENANT = "headway.key_tenant"
"""Key in a request's scope for the tenant of its API key, empty for a key without one."""

_HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
})  # fmt: skip
_ORIGIN = b"origin"
_NOT_TO_INSTANCES = (
    _HOP_BY_HOP | HINT_HEADERS | {b"host", b"content-length", b"accept-encoding", b"expect", _ORIGIN}
)
"""The gateway judges origins itself (`options.Cors`). vLLM would repeat an origin of any length in an answer's head."""
_CORS = {b"access-control-allow-origin", b"access-control-allow-credentials"}
_NOT_TO_CLIENTS = _HOP_BY_HOP | _CORS | {b"date", b"server"}
"""uvicorn writes its own date, and the gateway decides which pages may read an answer (`options.Cors`)."""
_NOT_DECODED = _NOT_TO_CLIENTS | {b"content-encoding", b"content-length"}
"""An instance's answer that was compressed, although that was not asked for, is decoded by now."""

STALLED_S = 60.0
"""Time without any data after which a body, or another idle connection, is given up."""
MIN_BODY_BYTES_PER_S = 16 * 2**10
LONGEST_BODY_S = 300.0
"""Longest wait for a whole body. A body may also be slower than MIN_BODY_BYTES_PER_S for STALLED_S; earlier speed
does not extend that.
"""
_REQUEST_ID = b"x-request-id"
_OF_BODY_AND_NAME = (_REQUEST_ID, b"content-encoding")
"""Headers that the gateway replaces in a request that it has read."""
API_KEY = b"x-api-key"
"""Header with the key of Anthropic's clients."""
_KEYS = (b"authorization", API_KEY)
_LOCATION = b"location"
EVENT_STREAM = "text/event-stream"
_STREAM_HEAD = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_EVENT_ENDS = (b"\n\n", b"\n\r\n")


class ClientGone(Exception):
    """The client closed its connection before its request was complete or read."""


class Client:
    """The client of one request, which gets the answer. `began`: the answer's head is out; `ended`: its end is.

    Data passed on ends with a line, which need not be the last of its event (`end_event`). Answers carry `request_id`,
    unless it is empty or the instance set one. `status` is that of the answer, or of the error in its place.
    `named_events`: the events of a stream have names.
    """

    __slots__ = ("_last", "_send", "began", "ended", "named_events", "request_id", "status")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._last = b""
        self.request_id = b""
        self.named_events = False
        self.began = False
        self.ended = False
        self.status = 0

    async def begin(self, status: int, headers: Headers) -> None:
        """Send the head of the answer."""
        self.began, self.status = True, status
        if self.request_id and all(name != _REQUEST_ID for name, _ in headers):
            headers = [*headers, (_REQUEST_ID, self.request_id)]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def pass_on(self, data: bytes) -> None:
        """Send part of the body."""
        self._last = data
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def stream(self, status: int, headers: Headers, data: bytes) -> None:
        """Send the head of a stream, unless it is out, and the first part of its body."""
        if not self.began:
            await self.begin(status, headers)
        await self.pass_on(data)

    async def keep_alive(self) -> None:
        """Send a comment, so that proxies do not take the stream for dead."""
        await self.stream(200, _STREAM_HEAD, b": keep-alive\n\n")

    async def end_event(self) -> None:
        """Write the empty line of an event that was cut off, so that the next one is separate."""
        if self._last and not self._last.endswith(_EVENT_ENDS):
            await self.pass_on(b"\n")

    async def end(self, data: bytes = b"") -> None:
        """Send the rest of the body."""
        self.ended = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer. If a stream's head is out, only an error can follow: it becomes the last event."""
        if not self.began:
            await self.begin(status, headers)
            await self.end(body)
            return
        self.status = status
        await self.end_event()
        await self.end(error_as_event(status, body, named=self.named_events))

    async def refuse(self, refusal: GatewayError) -> None:
        """Answer with an error of the gateway's own."""
        await self.answer(refusal.status, refusal.headers, refusal.body)


async def read_body(scope: Scope, receive: Receive, limit_bytes: int) -> bytes:
    """Read the whole body of a request.

    Raises GatewayError if it is too long (413) or too slow (408), ClientGone if it breaks off.
    """
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit_bytes:
            raise too_large(limit_bytes)
    parts = [piece async for piece in body_pieces(scope, receive, limit_bytes)]
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def body_pieces(scope: Scope, receive: Receive, limit_bytes: int) -> AsyncIterator[bytes]:
    """Yield a request's body as it arrives. Raises GatewayError (408, 413) and ClientGone as `read_body` does."""
    size, more, patience_s, left_s = 0, True, STALLED_S, LONGEST_BODY_S
    now_s, held = asyncio.get_running_loop().time, scope[HELD]
    while more:
        asked_s = now_s()
        try:
            if held.is_whole:
                message = await receive()  # the message has arrived
            else:
                async with asyncio.timeout(min(patience_s, left_s)):
                    message = await receive()
        except TimeoutError:
            raise stalled(MIN_BODY_BYTES_PER_S, STALLED_S, LONGEST_BODY_S) from None
        waited_s = now_s() - asked_s
        left_s -= waited_s
        if message["type"] != "http.request":
            raise ClientGone
        piece, more = message.get("body", b""), message.get("more_body", False)
        patience_s = min(STALLED_S, patience_s - waited_s + len(piece) / MIN_BODY_BYTES_PER_S)
        size += len(piece)
        if size > limit_bytes:
            raise too_large(limit_bytes)
        yield piece


def upstream_headers(
    headers: Headers, *, with_key: bool, request_id: bytes | None = None
) -> list[tuple[str, str]]:
    """A client's headers for an instance: end-to-end ones, without those that the body or the gateway replaces.

    `with_key`: whether to forward the client's key. `request_id` replaces the client's, since vLLM prefers the header
    to the body; empty: none. None: the body is forwarded unread too, in its own coding.
    """
    left_out = _NOT_TO_INSTANCES
    for name, value in headers:
        if name == b"connection":  # RFC 9110, section 7.6.1
            left_out = left_out | {each.strip() for each in value.lower().split(b",")}
    found = [
        (name.decode("latin-1"), header_text(value))
        for name, value in headers
        if name not in left_out
        and (with_key or name not in _KEYS)
        and (request_id is None or name not in _OF_BODY_AND_NAME)
    ]
    if request_id:
        found.append((_REQUEST_ID.decode(), request_id.decode()))
    found.append(("accept-encoding", "identity"))
    return found


def target_url(base_url: str, scope: Scope) -> URL:
    """The URL of a request at an instance: the normal path (`api.normal_path`), with the original query.

    Raises GatewayError (400) unless it is a path: after an instance's address, `*@host/` would name another host.
    """
    path, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
    if not path.startswith("/"):
        raise bad_request(f"the path is {path[:80]!r}; accepted: one that begins with /")
    return URL(root_of(base_url) + path + (f"?{query}" if query else ""), encoded=True)


def client_headers(response: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
    """An instance's headers for the client."""
    left_out = _NOT_DECODED if "Content-Encoding" in response.headers else _NOT_TO_CLIENTS
    return [
        (lowered, _place_here(value, response) if lowered == _LOCATION else value)
        for name, value in response.raw_headers
        if (lowered := name.lower()) not in left_out
    ]


def _place_here(location: bytes, response: aiohttp.ClientResponse) -> bytes:
    """Replace the instance's own address in a redirect: clients can reach only the gateway."""
    origin = str(response.url.origin()).encode()
    return location.removeprefix(origin) if location.startswith(origin + b"/") else location
