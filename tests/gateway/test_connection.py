"""Clients that keep a connection and do nothing with it, or send heads without end."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import logging
import socket
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack, suppress
from itertools import repeat

import pytest
import uvloop

from headway.gateway.http.connection import MAX_HEAD_BYTES, MAX_HEADERS, MAX_PIPELINED, Connection
from tests.gateway.fleets import until
from tests.gateway.front import PROMPT, Front, gateway
from tests.gateway.upstream import Turn, upstream

STALLED_S = 0.4
HEAD = b"GET /health HTTP/1.1\r\nHost: gateway\r\n"
STREAM = json.dumps({**PROMPT, "stream": True}).encode()
POST = b"POST /v1/completions HTTP/1.1\r\nHost: gateway\r\nContent-Length: %d\r\n\r\n" % len(STREAM)
EVENT = b'data: {"choices": [{"text": "%b"}]}\n\n' % (b"w" * 2**16)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.gateway.http.connection.STALLED_S", STALLED_S)


async def connected(front: Front) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = int(front.url.rpartition(":")[2])
    return await asyncio.open_connection("127.0.0.1", port, limit=2**10)


async def is_hung_up_on(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), 5 * STALLED_S) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("said", [b"", b"GET /hea", HEAD])
async def test_who_does_not_send_the_head_of_a_request_is_hung_up_on(said: bytes) -> None:
    async with upstream() as instance, gateway(instance) as front:
        reader, writer = await connected(front)
        writer.write(said)
        assert await is_hung_up_on(reader)
        writer.close()


async def test_nor_is_a_head_waited_for_that_has_only_begun_after_an_answer() -> None:
    async with upstream() as instance, gateway(instance) as front:
        reader, writer = await connected(front)
        writer.write(HEAD + b"\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await asyncio.sleep(2 * STALLED_S)  # idle it may be
        writer.write(b"G")
        assert await is_hung_up_on(reader)
        writer.close()


async def test_a_request_that_takes_longer_than_a_head_may_is_not_cut() -> None:
    async def late(turn: Turn) -> None:
        await asyncio.sleep(2 * STALLED_S)
        await turn.whole()

    async with upstream(act=late) as instance, gateway(instance) as front:
        assert (await front.post(PROMPT)).status == 200


CHUNKED = b"POST %b HTTP/1.1\r\nHost: gateway\r\nTransfer-Encoding: chunked\r\n\r\n"
SERVED = CHUNKED % b"/v1/completions"
PASSED_ON = CHUNKED % b"/elsewhere"
MIB = 2**20
A = b"a" * 2**16


async def answer_to(front: Front, parts: Iterable[bytes]) -> tuple[bytes, int]:
    """The bytes that a client reads until the connection ends, and the number it sent; it sends until it is cut off."""
    reader, writer = await connected(front)
    sent = 0
    for part in parts:
        if reader.at_eof() or reader.exception() is not None or writer.is_closing():
            break
        writer.write(part)
        sent += len(part)
        try:
            await writer.drain()
        except ConnectionError:
            break
    answer = b""
    try:
        while read := await asyncio.wait_for(reader.read(2**16), 30):
            answer += read
    except ConnectionError:
        pass
    writer.close()
    return answer, sent


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        pytest.param([HEAD + b"X-A: ", *repeat(A, 960)], 431, id="a header line of 60 MiB"),
        pytest.param([HEAD + b"X-A: 1\r\n" * 8000 + b"\r\n"], 431, id="8,000 headers"),
        pytest.param([HEAD + b"X-A: 1\r\n" * MAX_HEADERS + b"\r\n"], 431, id="one header too many"),
        pytest.param([HEAD, *repeat(b"X-A: 1\r\n" * 2**13, 960)], 431, id="headers without end"),
        pytest.param([b"GET /", *repeat(A, 160)], 414, id="a URL of 10 MiB"),
        pytest.param(
            [SERVED + b"0\r\n", *repeat(b"X-A: 1\r\n" * 2**13, 960)], 431, id="trailers without end"
        ),
        pytest.param([PASSED_ON + b"0\r\nX-A: ", *repeat(A, 960)], 431, id="a trailer of 60 MiB"),
        pytest.param([SERVED + b"1;a=", *repeat(A, 960)], 431, id="a chunk extension of 60 MiB"),
        pytest.param(
            [SERVED, *repeat(b"1;a=%b\r\n{\r\n" % A[:100], 10**5)], 431, id="extensions without end"
        ),
        pytest.param([*repeat(b"\r\n" * 2**15, 960)], 431, id="empty lines without end"),
    ],
)
async def test_a_head_without_end_is_refused_and_the_connection_ends(parts: list[bytes], status: int) -> None:
    async with upstream() as instance, gateway(instance) as front:
        answer, sent = await answer_to(front, parts)
        head, _, body = answer.partition(b"\r\n\r\n")
        # The system may drop an answer that comes before the end of what is sent; then all that is left is the end.
        if answer:
            assert head.startswith(b"HTTP/1.1 %d " % status)
            assert b"connection: close" in head
            assert str(MAX_HEAD_BYTES) in json.loads(body)["error"]["message"]
        assert sent < 32 * MIB
        assert not instance.turns
        assert (await front.post(PROMPT)).status == 200


def head_of(size: int) -> bytes:
    """A head that counts as so many bytes: the URL and each header with a separator."""
    headers = [b"Host: gateway\r\n", b"Connection: close\r\n", b"X-A: "]
    filled = len(b"/health") + sum(map(len, headers)) + len(b"\r\n")
    return b"GET /health HTTP/1.1\r\n" + b"".join(headers) + b"a" * (size - filled) + b"\r\n\r\n"


@pytest.mark.parametrize(("excess", "status"), [(0, 200), (1, 431)])
async def test_a_head_may_be_as_large_as_the_limit(excess: int, status: int) -> None:
    async with upstream() as instance, gateway(instance) as front:
        answer, _ = await answer_to(front, [head_of(MAX_HEAD_BYTES + excess)])
        assert answer.startswith(b"HTTP/1.1 %d " % status)


async def test_a_head_over_the_limit_ends_a_connection_whose_last_answer_is_still_due() -> None:
    async with upstream(act=events_for_ever) as instance, gateway(instance) as front:
        reader, writer = await connected(front)
        writer.write(POST + STREAM)
        await reader.readuntil(b"data: ")
        writer.write(HEAD + b"X-A: 1\r\n" * MAX_HEADERS + b"\r\n")
        await until(lambda: front.accounts.totals.cancelled)
        writer.close()


async def test_large_bodies_in_any_chunks_are_no_heads() -> None:
    async def chunks(size: int) -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    body = json.dumps({**PROMPT, "prompt": "x" * 2**19}).encode()
    async with upstream() as instance, gateway(instance) as front:
        for size in (16, 4096, 2**17):
            async with front.session.post(f"{front.url}/v1/completions", data=chunks(size)) as answer:
                assert answer.status == 200
        assert (await front.post(body)).status == 200
        assert [len(each["prompt"]) for each in instance.bodies] == [2**19] * 4


async def test_trailers_are_no_headers() -> None:
    async with upstream() as instance, gateway(instance) as front:
        body = json.dumps(PROMPT).encode()
        chunk = b"%x\r\n%b\r\n" % (len(body), body)
        ending = b"0\r\nX-Tenant: blue\r\nX-Later: 1\r\n\r\n"
        head = SERVED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        answer, _ = await answer_to(front, [head, chunk, ending])
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert "x-later" not in instance.turns[0].request.headers
        assert instance.bodies[0]["vllm_xargs"] == {"headway_may_move": 0}


async def test_requests_are_answered_in_turn_up_to_a_limit() -> None:
    async with upstream() as instance, gateway(instance) as front:
        request, last = HEAD + b"\r\n", HEAD + b"Connection: close\r\n\r\n"
        answer, _ = await answer_to(front, [request * MAX_PIPELINED + last])
        assert answer.count(b"HTTP/1.1 200 ") == MAX_PIPELINED + 1
        answer, _ = await answer_to(front, [request * (MAX_PIPELINED + 1) + last])
        assert not answer


async def test_what_is_not_http_is_refused_as_everything_else() -> None:
    async with upstream() as instance, gateway(instance) as front:
        answer, _ = await answer_to(front, [b"what is this\r\n\r\n"])
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "bad_request"


async def events_for_ever(turn: Turn) -> None:
    await turn.begin()
    while True:
        await turn.raw(EVENT)


async def test_who_reads_nothing_of_a_stream_gives_back_its_place() -> None:
    async with upstream(act=events_for_ever) as instance, gateway(instance, max_in_flight=1) as front:
        _, writer = await connected(front)
        writer.write(POST + STREAM)
        await until(lambda: front.app.serving.queue.inside)
        await until(lambda: front.accounts.totals.cancelled)
        await front.idle()
        await asyncio.wait_for(instance.gone.wait(), 1)
        writer.transport.abort()


async def test_who_reads_slowly_is_served() -> None:
    """Some 10 MB a second, of far more than fits on the way; it takes three times as long as nothing may be read."""

    async def many(turn: Turn) -> None:
        await turn.begin()
        for _ in range(400):
            await turn.raw(EVENT)
        await turn.raw(b"data: [DONE]\n\n")

    async with upstream(act=many) as instance, gateway(instance) as front:
        port = int(front.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(client, POST + STREAM)
            got = b""
            size = 0
            while not got.endswith(b"0\r\n\r\n"):
                got = (await loop.sock_recv(client, 2**20))[-16:] or pytest.fail("it was hung up on")
                size += 1
                await asyncio.sleep(0.03)
        assert size > 1
        await until(lambda: front.accounts.totals.finished)


async def test_a_client_that_leaves_is_noticed_although_another_request_of_its_waits() -> None:
    async with upstream(act=lambda _turn: asyncio.sleep(3600)) as instance, gateway(instance) as front:
        _, writer = await connected(front)
        writer.write(POST + STREAM)
        await until(lambda: instance.running)
        writer.write(HEAD + b"\r\n")
        await writer.drain()
        writer.transport.abort()
        await until(lambda: front.accounts.totals.cancelled)
        await until(lambda: not instance.running)


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %b\r\nHTTP2-Settings: AAA\r\n"
SMUGGLED = b"POST /v1/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([HEAD, UPGRADE % b"WebSocket", b"\r\n"], id="a WebSocket"),
        pytest.param(
            [
                HEAD.replace(b"GET", b"POST"),
                UPGRADE % b"h2c",
                b"Content-Length: %d\r\n\r\n" % len(SMUGGLED),
                SMUGGLED,
            ],
            id="a body",
        ),
        pytest.param([SERVED[:-2], UPGRADE % b"h2c", b"\r\n", b"0\r\n\r\n"], id="a chunked body"),
    ],
)
async def test_an_upgrade_that_cannot_be_left_out_is_refused(parts: list[bytes]) -> None:
    async with upstream() as instance, gateway(instance) as front:
        answer, _ = await answer_to(front, parts)
        assert answer.startswith(b"HTTP/1.1 501 ")
        assert answer.count(b"\r\n\r\n") == 1
        assert not instance.turns


async def test_mistakes_of_clients_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    async with upstream() as instance, gateway(instance) as front:
        await answer_to(front, [b"CONNECT /health HTTP/1.1\r\nHost: gateway\r\n\r\n"])
        await answer_to(front, [b"no HTTP\r\n\r\n"])
        await answer_to(front, [HEAD + UPGRADE % b"h2c" + b"\r\n"])
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_what_follows_a_request_for_an_upgrade_is_not_read() -> None:
    async with upstream() as instance, gateway(instance) as front:
        answer, _ = await answer_to(front, [HEAD + UPGRADE % b"h2c" + b"\r\n", SMUGGLED])
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in answer
        assert not instance.turns


def test_a_crowd_of_connections_is_taken_in_a_few_turns_of_the_loop() -> None:
    async def turns(crowd: int) -> int:
        async with upstream() as instance, gateway(instance) as front:
            port, passed = int(front.url.rpartition(":")[2]), 0
            with ExitStack() as clients:
                for _ in range(crowd):
                    clients.enter_context(socket.create_connection(("127.0.0.1", port)))
                while front.app.limits.connections < crowd:
                    await asyncio.sleep(0)
                    passed += 1
            return passed

    assert uvloop.run(turns(128)) < 32


async def test_connections_are_taken_again_once_there_are_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.gateway.http.server._PAUSE_S", 0.01)
    accept, failures = socket.socket.accept, [OSError(errno.EMFILE, "Too many open files")]
    async with upstream() as instance, gateway(instance) as front:
        port = int(front.url.rpartition(":")[2])

        def failing(listener: socket.socket) -> tuple[socket.socket, object]:
            if listener.getsockname()[1] == port and failures:
                raise failures.pop()
            return accept(listener)

        monkeypatch.setattr(socket.socket, "accept", failing)
        assert (await front.get("/health")).status == 200
        assert not failures


@pytest.mark.parametrize("linger_s", [1, 0], ids=["closed", "reset"])
async def test_nothing_of_a_connection_waits_for_a_collection_of_garbage(linger_s: int) -> None:
    said = [
        b"GET /hea",
        HEAD + b"\r\n",
        b"\0",
        HEAD + b"X: 1\r\n" * 101,
        POST + STREAM,
        (POST + b"{" * len(STREAM)) * 3,
    ]
    async with upstream() as instance, gateway(instance) as front:
        gc.disable()
        try:
            for each in said:
                reader, writer = await connected(front)
                linger = struct.pack("ii", 1, linger_s)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.write(each)
                with suppress(ConnectionError):
                    await reader.read(1)
                writer.close()
            await until(lambda: not front.app.limits.connections)
            assert not [each for each in gc.get_objects() if type(each) is Connection]
        finally:
            gc.enable()
