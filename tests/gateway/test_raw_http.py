"""Bytes that are nearly HTTP, sent to a gateway as they are: it answers or hangs up, and loses nothing and no time."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.gateway.http.keys import Keys
from tests.gateway.front import Front, gateway
from tests.gateway.upstream import Turn, Upstream, upstream

KEY = b"Authorization: Bearer k2\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
QUIET_S = 0.02
"""A connection on which nothing comes for so long is closed by its client."""
LONGEST_S = 60.0
"""What does not come then is an error."""
MOST_CPU_S = 0.5
"""Of the gateway and the instance behind it for one input of some 100 kB; 64 KiB of heads take a hundredth of this."""


@dataclass
class Running:
    """A gateway on a thread of its own, and what its server complained of."""

    port: int
    front: Front
    instance: Upstream
    clock: int
    complaints: list[str]

    def cpu_s(self) -> float:
        return time.clock_gettime(self.clock)

    def say(self, pieces: list[bytes], patience_s: float = QUIET_S) -> bytes:
        """The response to these bytes; the client stops listening once nothing more comes."""
        answer = b""
        with socket.create_connection(("127.0.0.1", self.port)) as client:
            client.settimeout(patience_s)
            try:
                for piece in pieces:
                    client.sendall(piece)
                while part := client.recv(2**16):
                    answer += part
            except (TimeoutError, ConnectionError):
                pass
        return answer


async def as_vllm(turn: Turn) -> None:
    """A completion without a prompt is a 400."""
    if "prompt" in turn.body:
        await turn.answer()
    else:
        await turn.refuse(400, b'{"error": {"message": "no prompt", "code": 400}}')


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    found: list[tuple[Front, Upstream, asyncio.AbstractEventLoop, asyncio.Event]] = []
    ready = threading.Event()

    async def serve() -> None:
        keys = Keys({b"k1": "", b"k2": "blue"})
        stop = asyncio.Event()
        async with upstream(act=as_vllm) as instance, gateway(instance, keys=keys, max_body_mib=1) as front:
            found.append((front, instance, asyncio.get_running_loop(), stop))
            ready.set()
            await stop.wait()

    complaints: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: complaints.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("uvicorn.error").addHandler(handler)
    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(60)
    [(front, instance, loop, stop)] = found
    assert thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)
    yield Running(int(front.url.rpartition(":")[2]), front, instance, clock, complaints)
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    logging.getLogger("uvicorn.error").removeHandler(handler)


# ---- inputs -------------------------------------------------------------------------------------------------------


def mostly(right: list[bytes], wrong: list[bytes]) -> st.SearchStrategy[bytes]:
    """One that is right, or one time in eight one that is not."""
    usual = st.sampled_from(right)
    return st.integers(0, 7).flatmap(
        lambda turn: usual if turn else st.one_of(st.sampled_from(wrong), st.binary(max_size=40))
    )


METHODS = mostly(
    [b"GET", b"POST", b"POST", b"OPTIONS", b"HEAD", b"DELETE"], [b"PRI", b"get", b"CONNECT", b"\xff", b""]
)
TARGETS = mostly(
    [b"/health", b"/v1/completions", b"/v1/completions", b"/v1/models", b"/v1/embeddings", b"/v1/explain/x"],
    [
        b"*", b"", b"x:80", b"http://h/v1/models", b"//h/v1/models", b"/%2e%2e/metrics", b"/v1/responses/../x", b"/%",
        b"/v1/completions/%2e%2e%2f..%5c..//pause", b"/\xff\x00", b"/?" + b"a" * 70_000, b"/" + b"../" * 5000,
    ],
)  # fmt: skip
VERSIONS = mostly([b"HTTP/1.1"] * 5 + [b"HTTP/1.0"], [b"HTTP/2.0", b"HTTP/1.1 ", b"http/1.1", b"HTTP/", b""])
HEADERS = mostly(
    [
        b"Host: x", b"X-Api-Key: k1", b"Content-Type: application/json", b"Connection: close", b"Expect: 100-continue",
        b"X-Tenant: blue", b"Origin: https://evil.example", b"Access-Control-Request-Method: POST", b"Accept: */*",
    ],
    [
        b"Content-Length: 5, 5", b"Content-Length: -1", b"Content-Length: 99999999999999999999", b"Content-Length: 5",
        b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding:\x0bchunked",
        b"Connection: keep-alive, Upgrade", b"Upgrade: websocket", b"Upgrade: h2c", b"Authorization: Basic !",
        b"X-Tenant: red", b"X-Slo-Ttft-Ms: nan", b"X-Request-Id: \xff\xfe", b" folded: 1", b"No-Colon", b"X: \x00",
        b"X: " + b"a" * 70_000, b"X: 1\r\n" * 150,
    ],
)  # fmt: skip
PROMPT = b'{"model": "small", "prompt": "x", "max_tokens": 2}'
BODIES = mostly(
    [b"", PROMPT, PROMPT, b'{"input": ["x", "y"]}', b'{"model": "small", "prompt": ["x"], "n": 2000}'],
    [
        b'{"model":"small","prompt":' + b"[" * 5000, b'{"vllm_xargs":{' + b'"a":1,' * 100 + b'"b":1}}', HEALTH,
        b'{"model":"small","prompt":"' + b"x" * 10**6, b"{}" * 10**5, b'{"vllm_xargs":{"headway_tenant":7}}',
    ],
)  # fmt: skip
CHUNKS = mostly(
    [b"%x\r\n%b\r\n0\r\n\r\n" % (len(PROMPT), PROMPT), b"5\r\nhello\r\n0\r\nX-A: 1\r\n\r\n"],
    [
        b"1;a=b\r\n{\r\n" * 2000, b"fffffffffffffffff\r\n", b"-1\r\n", b"0\r\n" + b"X: 1\r\n" * 200, b"5\r\nhell",
        b"a\r\n{{{{{{{{{{\r\n" * 9000, b"5 \r\nhello\r\n0\r\n\r\n", b"5\nhello\n0\n\n",
    ],
)  # fmt: skip


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request whose parts are each right or wrong by themselves."""
    end = draw(mostly([b"\r\n"], [b"\n", b"\r"]))
    lines = [b" ".join([draw(METHODS), draw(TARGETS), draw(VERSIONS)]), *draw(st.lists(HEADERS, max_size=5))]
    if draw(st.integers(0, 3)):
        lines.append(KEY.strip())
    body, chunked = draw(BODIES), draw(st.integers(0, 3)) == 0
    if chunked:
        body = draw(CHUNKS)
        lines.append(b"Transfer-Encoding: chunked")
    if draw(st.integers(0, 7)) and not (chunked and draw(st.integers(0, 7))):
        lines.append(b"Content-Length: %d" % (len(body) + draw(st.sampled_from([0] * 12 + [-1, 1, 2**21]))))
    return end.join(lines) + end + end + body


@st.composite
def inputs(draw: st.DrawFn) -> list[bytes]:
    """A few requests in pieces, perhaps cut off, perhaps with a byte that is another."""
    whole = bytearray(b"".join(draw(st.lists(requests(), min_size=1, max_size=4))))
    if whole and draw(st.integers(0, 3)) == 0:
        whole[draw(st.integers(0, len(whole) - 1))] = draw(st.integers(0, 255))
    if draw(st.integers(0, 3)) == 0:
        del whole[draw(st.integers(0, len(whole))) :]
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=3)))
    return [bytes(whole[a:b]) for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


ANSWER = re.compile(rb"HTTP/1\.1 ([0-9]{3}) ")
ACCEPTED = {100, 200, 202, 204, 400, 401, 403, 404, 405, 408, 413, 414, 429, 431, 501, 503}


@given(pieces=inputs())
def test_whatever_comes_is_answered_or_hung_up_on(running: Running, pieces: list[bytes]) -> None:
    before_s = running.cpu_s()
    answer = running.say(pieces)
    spent_s = running.cpu_s() - before_s
    assert not answer or ANSWER.match(answer)
    assert {int(status) for status in ANSWER.findall(answer)} <= ACCEPTED
    assert spent_s < MOST_CPU_S
    # What came before does no harm to what comes after, and nothing of it stays.
    assert running.say([HEALTH], LONGEST_S).startswith(b"HTTP/1.1 200 ")
    ask = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%bContent-Length: %d\r\n\r\n%b"
    asked = len(running.instance.turns)
    answer = running.say([ask % (KEY, len(PROMPT), PROMPT)], LONGEST_S)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert len(running.instance.turns) > asked
    limits, serving = running.front.app.limits, running.front.app.serving
    deadline_s = time.monotonic() + LONGEST_S
    while limits.held_bytes or limits.connections or serving.running:
        assert time.monotonic() < deadline_s, (limits.held_bytes, limits.connections, serving.running)
        time.sleep(0.005)
    assert not running.complaints
    for path in running.instance.echoed:
        assert path.startswith("/")
        assert ".." not in path.split("/")
