"""The client's side of a request, in ASGI's terms."""

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
"""Where a request's scope has the tenant of its key, empty for a key without one."""

_HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
})  # fmt: skip
_ORIGIN = b"origin"
_NOT_TO_INSTANCES = (
    _HOP_BY_HOP | HINT_HEADERS | {b"host", b"content-length", b"accept-encoding", b"expect", _ORIGIN}
)
"""An origin is for the gateway to judge (`options.Cors`). vLLM repeats one of any length in an answer's head."""
_CORS = {b"access-control-allow-origin", b"access-control-allow-credentials"}
_NOT_TO_CLIENTS = _HOP_BY_HOP | _CORS | {b"date", b"server"}
"""uvicorn writes its own date; which pages may read an answer is the gateway's to say (`options.Cors`)."""
_NOT_DECODED = _NOT_TO_CLIENTS | {b"content-encoding", b"content-length"}
"""What an instance sent compressed, although it was asked not to, is plain by now."""

STALLED_S = 60.0
"""A body of which nothing comes for so long is given up, and so are others that keep a connection waiting."""
MIN_BODY_BYTES_PER_S = 16 * 2**10
LONGEST_BODY_S = 300.0
"""Waiting for a body in all. It may be slower than MIN_BODY_BYTES_PER_S for STALLED_S: what it sent faster before does
not make that longer."""
_REQUEST_ID = b"x-request-id"
_OF_BODY_AND_NAME = (_REQUEST_ID, b"content-encoding")
"""What the gateway says otherwise of a request that it has read."""
API_KEY = b"x-api-key"
"""Where Anthropic's clients have their key."""
_KEYS = (b"authorization", API_KEY)
_LOCATION = b"location"
EVENT_STREAM = "text/event-stream"
_STREAM_HEAD = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_EVENT_ENDS = (b"\n\n", b"\n\r\n")


class ClientGone(Exception):
    """The client closed its connection before its request had come whole, or had been read."""


class Client:
    """The client of one request, which gets its answer. `began`: the answer's head is out; `ended`: its end is.

    What is passed on ends with a line, which need not be the last of its event (`end_event`). Answers carry
    `request_id`, unless it is empty or the instance named one itself. `status` is that of the answer, or of the error
    that came in its place. `named_events`: the events of a stream have names.
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
        """The head of the answer."""
        self.began, self.status = True, status
        if self.request_id and all(name != _REQUEST_ID for name, _ in headers):
            headers = [*headers, (_REQUEST_ID, self.request_id)]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def pass_on(self, data: bytes) -> None:
        """Some of its body."""
        self._last = data
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def stream(self, status: int, headers: Headers, data: bytes) -> None:
        """The head of a stream, unless it is out, and the first of its body."""
        if not self.began:
            await self.begin(status, headers)
        await self.pass_on(data)

    async def keep_alive(self) -> None:
        """A comment, so that whatever is on the way does not take the stream for dead."""
        await self.stream(200, _STREAM_HEAD, b": keep-alive\n\n")

    async def end_event(self) -> None:
        """Write the empty line after an event that broke off before it: what comes next is another event."""
        if self._last and not self._last.endswith(_EVENT_ENDS):
            await self.pass_on(b"\n")

    async def end(self, data: bytes = b"") -> None:
        """The rest of its body."""
        self.ended = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole answer; if the head of a stream is out, which only an error can follow, as its last event."""
        if not self.began:
            await self.begin(status, headers)
            await self.end(body)
            return
        self.status = status
        await self.end_event()
        await self.end(error_as_event(status, body, named=self.named_events))

    async def refuse(self, refusal: GatewayError) -> None:
        """An error of the gateway's own, in place of an answer."""
        await self.answer(refusal.status, refusal.headers, refusal.body)


async def read_body(scope: Scope, receive: Receive, limit_bytes: int) -> bytes:
    """The whole body of a request.

    Raises GatewayError for a longer one (413) and for one that is too slow (408), ClientGone if it breaks off.
    """
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit_bytes:
            raise too_large(limit_bytes)
    parts = [piece async for piece in body_pieces(scope, receive, limit_bytes)]
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def body_pieces(scope: Scope, receive: Receive, limit_bytes: int) -> AsyncIterator[bytes]:
    """A request's body as it comes. Raises GatewayError (408, 413) and ClientGone as `read_body`."""
    size, more, patience_s, left_s = 0, True, STALLED_S, LONGEST_BODY_S
    now_s, held = asyncio.get_running_loop().time, scope[HELD]
    while more:
        asked_s = now_s()
        try:
            if held.is_whole:
                message = await receive()  # it is here
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
    """A client's headers for an instance: end-to-end ones, without what is said in the body or is the gateway's.

    `with_key`: whether the client's key is for the instance, since the gateway asks for none. `request_id` stands in
    place of the client's, since vLLM goes by the header before the body; empty: there is none. None: the body too goes
    on as it came, in its own coding.
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
    """Where a request goes at an instance: the path that was decided on (`api.normal_path`), its query as it came.

    Raises GatewayError (400) unless it is a path: behind an instance's
    address `*@host/` would name another host.
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
    """Where an instance sends the client on to: at the instance's own address it is the gateway that can be reached."""
    origin = str(response.url.origin()).encode()
    return location.removeprefix(origin) if location.startswith(origin + b"/") else location
