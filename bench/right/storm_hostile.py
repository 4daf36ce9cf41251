"""Attackers beside honest tenants, for `gateway_storm.py --hostile`; attackers alone: `storm_hostile.py URL SECONDS`.

Some attackers have no key and some have one of two tenants' keys. Some hold on to whatever they can, others keep
asking. Each continues until the time is up, and counts its answers by status (`cut`: the connection ended without an
answer). Some also ask for other tenants' data: `leaks` counts answers that hold another tenant's request.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from urllib.parse import urlsplit

OPERATOR, MALLORY, TRUDY = "operators-key", "mallorys-key", "trudys-key"
HONEST = ("alice", "bob", "carol")
MARK = "honest"
"""Prefix of every honest request's id: no attacker may ever read one."""

FILES = 512
"""Open files of the gateway, enough for 224 connections."""
BODY_MIB, BUFFERED_MIB = 2, 32
PER_TENANT = 40

_ANSWER_S = 10.0
_PAUSE_S = 0.05
_KIB, _MIB = 2**10, 2**20
_KEY = f"Authorization: Bearer {MALLORY}\r\n".encode()
_HOLDERS_KEY = f"Authorization: Bearer {TRUDY}\r\n".encode()


def key_of(tenant: str) -> str:
    """An honest tenant's key."""
    return f"{tenant}s-key"


def keys_file() -> str:
    """The lines of the `--api-keys` file."""
    lines = [
        OPERATOR,
        f"{MALLORY} mallory",
        f"{TRUDY} trudy",
        *(f"{key_of(tenant)} {tenant}" for tenant in HONEST),
    ]
    return "\n".join(lines) + "\n"


def post(path: str, *headers: bytes, size: int | None = None, key: bytes = _KEY) -> bytes:
    """The head of a POST; chunked if no size is given."""
    framing = b"Transfer-Encoding: chunked\r\n" if size is None else b"Content-Length: %d\r\n" % size
    return b"POST %b HTTP/1.1\r\nHost: x\r\n%b%b%b\r\n" % (path.encode(), key, framing, b"".join(headers))


def get(target: str, key: bytes = _KEY) -> bytes:
    """A GET whose connection closes after the answer."""
    return b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%b\r\n" % (target.encode(), key)


def whole(body: object, path: str = "/v1/completions") -> bytes:
    """A complete request; a body that is not bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return post(path, b"Connection: close\r\n", size=len(data)) + data


def nested(levels: int) -> bytes:
    """A body of lists nested this deep."""
    return b'{"model":"small","prompt":"x","z":' + b"[" * levels + b"]" * levels + b"}"


def listed(item: bytes, size: int) -> bytes:
    """A body with a list of prompts, of at most this size."""
    return b'{"model":"small","prompt":[' + b",".join([item] * (size // (len(item) + 1) - 40)) + b"]}"


def keyed(size: int) -> bytes:
    """A body with many fields, of at most this size."""
    return b'{"model":"small","prompt":"x",' + b",".join(b'"k%d":1' % n for n in range(size // 12)) + b"}"


_PROMPT = {"model": "small", "prompt": "one two three", "max_tokens": 20}
_CHUNKED = post("/v1/completions")
_UNKEYED = post("/v1/completions", key=b"")
_HEAD = b"GET /health HTTP/1.1\r\nHost: x\r\n"
_FILL = b"a" * 64 * _KIB
_BODY = BODY_MIB * _MIB
_PAGES = (
    "/v1/explain",
    f"/explain/{MARK}-alice-0",
    "/dashboard/state",
    "/metrics",
    "//metrics",
    "/v1/explain/%2e%2e/%2e%2e/metrics",
    "/v1/explain%2f..%2f..%2fdashboard%2fstate",
    f"/v1/responses/{MARK}-bob-1/../../../v1/shadow/0",
)

BURSTS: dict[str, Callable[[], Iterable[bytes]]] = {
    "a header of 60 MiB": lambda: [_HEAD + b"X-A: ", *repeat(_FILL, 960)],
    "8,000 headers": lambda: [_HEAD + b"X-A: 1\r\n" * 8000 + b"\r\n"],
    "a URL of 10 MiB": lambda: [b"GET /", *repeat(_FILL, 160)],
    "trailers without end": lambda: [_CHUNKED + b"0\r\n", *repeat(b"X-A: 1\r\n" * 8 * _KIB, 960)],
    "extensions without end": lambda: [_CHUNKED, *repeat(b"1;a=%b\r\n{\r\n" % _FILL[:100], 10**4)],
    "tiny chunks": lambda: [_CHUNKED, *repeat(b"a\r\n{{{{{{{{{{\r\n" * 4 * _KIB, 40)],
    "a body without a key": lambda: [_UNKEYED, *repeat(b"10000\r\n" + _FILL + b"\r\n", 400)],
    "a body that is too long": lambda: [_CHUNKED, *repeat(b"10000\r\n" + _FILL + b"\r\n", 400)],
    "5,000 prompts with n of 16": lambda: [whole({**_PROMPT, "prompt": ["x"] * 5000, "n": 16})],
    "a list of prompts": lambda: [whole(listed(b'"x"', _BODY))],
    "a list of ids": lambda: [whole(listed(b"[1]", _BODY))],
    "100,000 fields": lambda: [whole(keyed(_BODY))],
    "lists in lists": lambda: [whole(nested(100_000))],
    "many vllm_xargs": lambda: [whole({**_PROMPT, "vllm_xargs": {f"k{n}": 1 for n in range(50_000)}})],
    "no JSON": lambda: [whole(b'{"model": "small", "prompt": "' + b"\\" * 900 * _KIB)],
    "embeddings without end": lambda: [whole(listed(b'"x"', _BODY), "/v1/embeddings")],
    "preflights": lambda: [
        b"OPTIONS /v1/models HTTP/1.1\r\nHost: x\r\nOrigin: https://evil.example\r\nConnection: close\r\n"
        b"Access-Control-Request-Method: POST\r\n\r\n"
    ],
    "no HTTP": lambda: [os.urandom(4 * _KIB)],
}
"""Requests that are sent all at once, again and again."""


@dataclass
class Attackers:
    """All attackers of one gateway."""

    address: tuple[str, int]
    until_s: float
    answers: dict[str, Counter[str]] = field(default_factory=dict)
    leaks: int = 0

    async def run(self) -> None:
        """Attack until the time is up."""
        ways: list[Awaitable[None]] = [
            *(self._again(name, partial(self._burst_of, made)) for name, made in BURSTS.items()),
            self._again("pages of others", self._pages),
            self._again("a name for each request", self._names),
            *(self._again("its share, over and over", self._flood) for _ in range(2 * PER_TENANT)),
            *(self._again("a byte now and then", self._slow_body) for _ in range(24)),
            *(self._again("heads that do not end", self._slow_head) for _ in range(80)),
            *(self._again("a stream that is not read", self._unread) for _ in range(4)),
            *(self._again("pipelined heads", self._pipelined) for _ in range(4)),
            self._idle(),
        ]
        await asyncio.gather(*ways)

    async def _again(self, name: str, attack: Callable[[], Awaitable[str]]) -> None:
        counts = self.answers.setdefault(name, Counter())
        while time.monotonic() < self.until_s:
            try:
                counts[await attack()] += 1
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                counts["cut"] += 1
            await asyncio.sleep(_PAUSE_S)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def _burst_of(self, made: Callable[[], Iterable[bytes]]) -> str:
        return await self._burst(made())

    async def _burst(self, parts: Iterable[bytes]) -> str:
        async with self._connected() as (reader, writer):
            with suppress(ConnectionError):
                for part in parts:
                    if reader.at_eof() or reader.exception() or time.monotonic() > self.until_s:
                        break
                    writer.write(part)
                    await writer.drain()
            return await _status(reader)

    async def _pages(self) -> str:
        statuses = set()
        for target in _PAGES:
            async with self._connected() as (reader, writer):
                writer.write(get(target))
                answer = await asyncio.wait_for(reader.read(), _ANSWER_S)
                head, _, body = answer.partition(b"\r\n\r\n")
                statuses.add(head[9:12].decode())
                if MARK.encode() in body and not head.startswith((b"HTTP/1.1 404", b"HTTP/1.1 403")):
                    self.leaks += 1
        return " ".join(sorted(statuses))

    async def _names(self) -> str:
        """Send requests with another tenant's name."""
        data = json.dumps(_PROMPT).encode()
        head = post("/v1/completions", b"X-Tenant: alice\r\nConnection: close\r\n", size=len(data))
        return await self._burst([head + data])

    async def _flood(self) -> str:
        return await self._burst([whole({**_PROMPT, "max_tokens": 100})])

    async def _slow_body(self) -> str:
        """Send nearly all of a body at once, and then a byte now and then."""
        head = post("/v1/completions", size=_BODY, key=_HOLDERS_KEY)
        return await self._drip(head + b"{" * (_BODY - _KIB))

    async def _slow_head(self) -> str:
        return await self._drip(_HEAD + b"X-A: " + _FILL[: 60 * _KIB])

    async def _drip(self, said: bytes) -> str:
        async with self._connected() as (reader, writer):
            writer.write(said)
            status = asyncio.create_task(reader.readuntil(b"\r\n"))
            while not status.done() and time.monotonic() < self.until_s:
                writer.write(b"{")
                await asyncio.wait([status], timeout=0.5)
            return (await status)[9:12].decode() if status.done() else _given_up(status)

    async def _unread(self) -> str:
        data = json.dumps({**_PROMPT, "stream": True}).encode()
        async with self._connected() as (_, writer):
            writer.write(post("/v1/completions", size=len(data)) + data)
            await asyncio.sleep(min(2.0, max(0.0, self.until_s - time.monotonic())))
        return "left"

    async def _pipelined(self) -> str:
        data = json.dumps(_PROMPT).encode()
        one = (
            post("/v1/completions", b"X-A: %b\r\n" % _FILL[: 7 * _KIB], size=len(data), key=_HOLDERS_KEY)
            + data
        )
        return await self._burst([one * 60])

    async def _idle(self) -> None:
        """Keep more idle connections than the gateway may have open."""
        counts = self.answers.setdefault("idle connections", Counter())
        kept: list[asyncio.StreamWriter] = []
        while time.monotonic() < self.until_s:
            made = [asyncio.open_connection(*self.address) for _ in range(FILES)]
            for found in await asyncio.gather(*made, return_exceptions=True):
                if not isinstance(found, BaseException):
                    kept.append(found[1])
                    counts["opened"] += 1
            await asyncio.sleep(2.0)
            while len(kept) > FILES:
                kept.pop(0).transport.abort()
        for writer in kept:
            writer.transport.abort()


def _given_up(task: asyncio.Task[bytes]) -> str:
    task.cancel()
    return "waiting"


async def _status(reader: asyncio.StreamReader) -> str:
    line = await asyncio.wait_for(reader.readuntil(b"\r\n"), _ANSWER_S)
    return line[9:12].decode(errors="replace")


def address_of(url: str) -> tuple[str, int]:
    """Host and port."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 80


def main(words: Sequence[str]) -> int:
    """Attack from a process of low priority; print `{"answers": {...}, "leaks": 0}`."""
    os.nice(10)  # attackers have machines of their own, so they must not take this one's cores
    attackers = Attackers(address_of(words[0]), time.monotonic() + float(words[1]))
    asyncio.run(attackers.run())
    print(json.dumps({"answers": attackers.answers, "leaks": attackers.leaks}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
