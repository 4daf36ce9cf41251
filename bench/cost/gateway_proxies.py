"""The proxies that `gateway_overhead` compares, each on a core of its own, and a client that times chunks."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import httptools

from bench.cost.sse_servers import CHATS, COMPLETIONS, STAMP_DIGITS
from headway.lab.server import RunningServer, command_server, free_port

# ---- a client for the stub: a raw protocol that notes when each chunk came -------------------------

_STAMP = re.compile(rb'"(?:text|content)":"(\d{%d})' % STAMP_DIGITS)
_DONE = b"data: [DONE]"
MODEL = "stub"
WORDS_OF_PROMPT = 200


@dataclass(slots=True)
class Heard:
    """The result of one request; times in nanoseconds of the machine's monotonic clock.

    `first_ns` is when the first byte of its body came. `under_way_ns` has for each chunk the time from the upstream's
    write to its arrival. `error` says what was wrong with the answer.
    """

    sent_ns: int
    first_ns: int | None = None
    ended_ns: int | None = None
    under_way_ns: list[int] = field(default_factory=list)
    error: str | None = None
    whole: bool = False


def completion(chunks: int, interval_s: float) -> bytes:
    """The body that asks the stub for a greedy stream."""
    return _asking(chunks, {"prompt": f"{round(interval_s * 1e6)} {'word ' * WORDS_OF_PROMPT}"})


def chat(chunks: int) -> bytes:
    """The body of a chat whose answer comes in one write. The gateway keeps its events, since it could be made
    again.
    """
    return _asking(chunks, {"messages": [{"role": "user", "content": f"0 {'word ' * WORDS_OF_PROMPT}"}]})


def _asking(chunks: int, prompt: dict[str, Any]) -> bytes:
    body = {"model": MODEL, **prompt, "max_tokens": chunks, "temperature": 0.0, "stream": True}
    return json.dumps(body).encode()


class Line(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._heard: Heard | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._tail = b""
        self._now_ns = 0
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; uvloop's is no `asyncio.Transport` by class."""
        self._transport = cast(asyncio.Transport, transport)

    async def ask(self, request: bytes, heard: Heard) -> None:
        """Send a request and return when its answer has ended, completely or not."""
        self._heard, self._tail = heard, b""
        self._waiter = asyncio.get_running_loop().create_future()
        heard.sent_ns = time.monotonic_ns()
        self._transport.write(request)
        await self._waiter

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Part of an answer."""
        self._now_ns = time.monotonic_ns()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(f"no HTTP: {error}")
            self._transport.close()

    def on_body(self, body: bytes) -> None:
        """Events, the last of which may be cut."""
        heard = self._heard
        if heard is None:
            return
        if heard.first_ns is None:
            heard.first_ns = self._now_ns
        *events, self._tail = (self._tail + body).split(b"\n\n")
        for each in events:
            stamp = _STAMP.search(each)
            if stamp is not None:
                heard.under_way_ns.append(self._now_ns - int(stamp[1]))
            elif each.startswith(_DONE):
                heard.whole = True

    def on_message_complete(self) -> None:
        """The answer has ended."""
        status = self._parser.get_status_code()
        self._end(None if status == 200 else f"HTTP {status}")

    def connection_lost(self, exc: Exception | None) -> None:
        """No further requests are possible."""
        self.closed = True
        self._end("the connection was closed")

    def _end(self, error: str | None) -> None:
        heard, waiter, self._heard = self._heard, self._waiter, None
        if heard is None or waiter is None:
            return
        heard.ended_ns = self._now_ns
        heard.error = error or (None if heard.whole else "the stream has no end")
        waiter.set_result(None)


@dataclass(slots=True)
class Client:
    """Sends streams to one server over kept connections; `heard` has the results in no particular order."""

    url: str
    heard: list[Heard] = field(default_factory=list)
    _idle: list[Line] = field(default_factory=list)

    async def one(self, body: bytes) -> Heard:
        """Send one request and read its whole answer."""
        heard = Heard(time.monotonic_ns())
        line = await self._line()
        await line.ask(self._request(body), heard)
        self.heard.append(heard)
        if not line.closed:
            self._idle.append(line)
        return heard

    async def at_times(self, times_s: Sequence[float], body: bytes) -> None:
        """Send a request at each of these ascending times, whatever became of the others; wait for all answers."""
        began_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for time_s in times_s:
                await asyncio.sleep(time_s - (time.perf_counter() - began_s))
                group.create_task(self.one(body))

    async def in_turn(self, connections: int, seconds: float, body: bytes) -> None:
        """Send requests in sequence on each of `connections` connections, for `seconds`."""
        until_s = time.perf_counter() + seconds

        async def go_on() -> None:
            while time.perf_counter() < until_s:
                await self.one(body)

        async with asyncio.TaskGroup() as group:
            for _ in range(connections):
                group.create_task(go_on())

    def close(self) -> None:
        """Close every connection."""
        for line in self._idle:
            line.close()
        self._idle.clear()

    async def _line(self) -> Line:
        while self._idle:
            line = self._idle.pop()
            if not line.closed:
                return line
        parts = urlsplit(self.url)
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(Line, parts.hostname or "", parts.port or 80)
        return made

    def _request(self, body: bytes) -> bytes:
        path = CHATS if b'"messages"' in body else COMPLETIONS
        head = (
            f"POST {path.decode()} HTTP/1.1\r\n"
            f"Host: {urlsplit(self.url).netloc}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


SERVERS = Path(__file__).with_name("sse_servers.py")
DIRECT, BARE, HEADWAY, PLAIN_HEADWAY, RUST = "direct", "bare", "headway", "headway-no-resume", "vllm-router"


def commands(upstream: str, rust: Path | None) -> dict[str, list[str]]:
    """How each proxy is started in front of `upstream`, with `{port}` left open; the Rust router only if it exists."""
    headway = [
        *(sys.executable, "-m", "headway.cli", "serve", "--join", upstream),
        *("--router", "round-robin", "--port", "{port}"),
    ]
    found = {
        BARE: [sys.executable, str(SERVERS), "bare", "{port}", upstream],
        HEADWAY: headway,
        PLAIN_HEADWAY: [*headway, "--no-resume"],
    }
    if rust is not None:
        found[RUST] = [
            *(str(rust), "--worker-urls", upstream, "--host", "127.0.0.1", "--port", "{port}"),
            *("--policy", "round_robin", "--log-level", "error"),
        ]
    return found


@contextmanager
def running(core: int, rust: Path | None) -> Iterator[dict[str, RunningServer]]:
    """Run the stub beside this process, and every proxy on `core`; all end with the block.

    Raises UpstreamError if one of them does not answer in time.
    """
    with ExitStack() as stack:
        found = {DIRECT: stack.enter_context(stub())}
        for name, words in commands(found[DIRECT].url, rust).items():
            port = free_port()
            with on_core(core):  # a process starts on its parent's cores
                command = [word.format(port=port) for word in words]
                found[name] = stack.enter_context(streaming(name, command, port))
        yield found


@contextmanager
def stub() -> Iterator[RunningServer]:
    """Run the upstream in a process of its own. Raises UpstreamError if it does not answer in time."""
    port = free_port()
    with streaming(DIRECT, [sys.executable, str(SERVERS), "stub", str(port)], port) as server:
        yield server


@contextmanager
def streaming(name: str, command: Sequence[str], port: int) -> Iterator[RunningServer]:
    """Run a command's server until it streams an answer. Raises UpstreamError if that takes too long."""
    with (
        TemporaryDirectory() as folder,
        command_server(
            command, port, Path(folder) / "log", name=name, ready=streams, environment=_environment()
        ) as server,
    ):
        yield server


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Run this process on one core inside the block."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _environment() -> Mapping[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SERVERS.parents[2]), os.environ.get("PYTHONPATH", "")]),
    }


def streams(url: str) -> bool:
    """Whether a server streams a completion to its end."""
    request = Request(
        f"{url}/v1/completions", data=completion(2, 0.0), headers={"Content-Type": "application/json"}
    )
    with suppress(OSError), urlopen(request, timeout=5.0) as answer:
        return b"[DONE]" in answer.read()
    return False
