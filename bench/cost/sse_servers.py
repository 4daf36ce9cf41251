"""Two servers that `gateway_overhead` starts: `sse_servers.py stub PORT`, and `sse_servers.py bare PORT UPSTREAM`.

The stub is a fast stand-in for a vLLM server that streams: a raw asyncio protocol on uvloop. A completion or a chat has
`max_tokens` chunks like vLLM's, the first at once and the others as far apart as the prompt's first number says, in
microseconds; 0 sends all in one write. The text of each chunk is the time at which it was written, in nanoseconds of
the machine's monotonic clock, so that a client on the same machine knows how long each was under way. Of a chat's
messages the last one's text is the prompt. Token ids are
there if the body asks for them. Prints `ready` when it listens.

The bare proxy does the least that a proxy in Python does: it reads the body, parses it as JSON, forwards it, and passes
the answer's bytes on as they come; no routing, no books.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from typing import Any, cast

import aiohttp
import httptools
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.routing import Route

STAMP_DIGITS = 19
MODEL = "stub"
DONE = b"data: [DONE]\n\n"

_MAX_TOKENS = re.compile(rb'"max_tokens":\s*(\d+)')
_INTERVAL_US = re.compile(rb'"(?:prompt|content)":\s*"(\d+)')
_WITH_IDS = re.compile(rb'"return_token_ids":\s*true')

_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_PLAIN = {
    b"/health": b"",
    b"/version": b'{"version":"0.32.0"}',
    b"/v1/models": b'{"object":"list","data":[{"id":"stub","object":"model","created":0,"owned_by":"vllm",'
    b'"max_model_len":4096}]}',
    b"/metrics": b'# TYPE headway_steps_total counter\nheadway_steps_total{engine="0"} 1.0\n',
}


COMPLETIONS, CHATS = b"/v1/completions", b"/v1/chat/completions"


def chat_event(stamp_ns: int, *, last: bool, first: bool, with_ids: bool) -> bytes:
    """One chunk of a chat's stream, as vLLM 0.32 writes it; the first comes after that of the role."""
    head = (
        b'data: {"id":"chatcmpl-7f9f0c5c2b3e4d0f","object":"chat.completion.chunk","created":1763764800,'
        b'"model":"stub",'
    )
    role = (
        b'%b"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],'
        b'"prompt_token_ids":%b}\n\n' % (head, b"[1,2,3,4]" if with_ids else b"null")
    )
    finish = b'"length","stop_reason":null' if last else b"null"
    ids = b"[271]" if with_ids else b"null"
    return (role if first else b"") + (
        b'%b"choices":[{"index":0,"delta":{"content":"%0*d"},"logprobs":null,"finish_reason":%b,"token_ids":%b}]}\n\n'
        % (head, STAMP_DIGITS, stamp_ns, finish, ids)
    )


def event(stamp_ns: int, *, last: bool, first: bool, with_ids: bool) -> bytes:
    """One chunk of a completion's stream, as vLLM 0.32 writes it."""
    prompt_ids = b"[1,2,3,4]" if first and with_ids else b"null"
    return (
        b'data: {"id":"cmpl-7f9f0c5c2b3e4d0f","object":"text_completion","created":1763764800,"model":"stub",'
        b'"choices":[{"index":0,"text":"%0*d","logprobs":null,"finish_reason":%b,"stop_reason":null,'
        b'"prompt_token_ids":%b,"token_ids":%b}]}\n\n'
        % (
            STAMP_DIGITS,
            stamp_ns,
            b'"length"' if last else b"null",
            prompt_ids,
            b"[271]" if with_ids else b"null",
        )
    )


def framed(data: bytes) -> bytes:
    """A piece of a body in HTTP's chunked encoding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Upstream(asyncio.Protocol):
    """One connection, kept between requests."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._target, self._body = b"", b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; uvloop's is no `asyncio.Transport` by class."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Part of a request."""
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        """A request begins."""
        self._target, self._body = url, b""

    def on_body(self, body: bytes) -> None:
        """More of its body."""
        self._body += body

    def on_message_complete(self) -> None:
        """Answer it."""
        if self._target in (COMPLETIONS, CHATS):
            self._stream(self._body)
            return
        found = _PLAIN.get(self._target)
        status, body = (b"404 Not Found", b"") if found is None else (b"200 OK", found)
        kind = b"text/plain" if self._target == b"/metrics" else b"application/json"
        self._transport.write(
            b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b"
            % (status, kind, len(body), body)
        )
        if not self._parser.should_keep_alive():
            self._transport.close()

    def _stream(self, body: bytes) -> None:
        asked, interval = _MAX_TOKENS.search(body), _INTERVAL_US.search(body)
        chunks = int(asked[1]) if asked else 16
        interval_s = int(interval[1]) / 1e6 if interval else 0.0
        with_ids = _WITH_IDS.search(body) is not None
        if interval_s == 0:
            events = [self._event(place, chunks, with_ids) for place in range(chunks)]
            self._transport.write(_HEAD + b"".join(events) + framed(DONE) + b"0\r\n\r\n")
            return
        self._transport.write(_HEAD + self._event(0, chunks, with_ids))
        self._later(1, chunks, with_ids, interval_s, asyncio.get_running_loop().time())

    def _later(self, place: int, chunks: int, with_ids: bool, interval_s: float, began_s: float) -> None:
        """Write the event at `place` when it is due, and then the following ones."""
        loop = asyncio.get_running_loop()

        def write() -> None:
            if self._transport.is_closing():
                return
            if place == chunks:
                self._transport.write(framed(DONE) + b"0\r\n\r\n")
                return
            self._transport.write(self._event(place, chunks, with_ids))
            self._later(place + 1, chunks, with_ids, interval_s, began_s)

        loop.call_at(began_s + min(place, chunks - 1) * interval_s, write)

    def _event(self, place: int, chunks: int, with_ids: bool) -> bytes:
        write = chat_event if self._target == CHATS else event
        return framed(
            write(time.monotonic_ns(), last=place == chunks - 1, first=place == 0, with_ids=with_ids)
        )


async def serve(port: int) -> None:
    """Listen on this machine until cancelled."""
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port, backlog=1024)
    print("ready", flush=True)
    await server.serve_forever()


# ---- the bare proxy ----------------------------------------------------------------------------------

_HOP_BY_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"host"}


class Proxy:
    """A raw ASGI endpoint."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Forward one request."""
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        json.loads(body)
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        headers = {name.decode(): value.decode() for name, value in _kept(scope["headers"])}
        url = self._upstream + scope["path"]
        async with self._session.post(url, data=body, headers=headers) as answer:
            kept = _kept(answer.raw_headers)
            await send({"type": "http.response.start", "status": answer.status, "headers": kept})
            async for data in answer.content.iter_any():
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _kept(headers: Any) -> list[tuple[bytes, bytes]]:
    lowered = ((name.lower(), value) for name, value in headers)
    return [(name, value) for name, value in lowered if name not in _HOP_BY_HOP]


def serve_bare(port: int, upstream: str) -> None:
    """Serve on a port of this machine until ended."""
    proxy = Proxy(upstream)
    routes = [Route(path.decode(), proxy, methods=["POST"]) for path in (COMPLETIONS, CHATS)]
    app = Starlette(routes=routes)
    uvicorn.run(app, port=port, loop="uvloop", http="httptools", access_log=False, log_level="warning")


if __name__ == "__main__":
    if sys.argv[1] == "stub":
        uvloop.run(serve(int(sys.argv[2])))
    else:
        serve_bare(int(sys.argv[2]), sys.argv[3])
