"""Clients that keep a connection and do nothing with it."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

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
    monkeypatch.setattr("headway.gateway.connection.STALLED_S", STALLED_S)


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


async def events_for_ever(turn: Turn) -> None:
    await turn.begin()
    while True:
        await turn.raw(EVENT)


async def test_who_reads_nothing_of_a_stream_gives_back_its_place() -> None:
    async with upstream(act=events_for_ever) as instance, gateway(instance, max_in_flight=1) as front:
        _, writer = await connected(front)
        writer.write(POST + STREAM)
        await until(lambda: front.app.serving.turnstile.inside)
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
