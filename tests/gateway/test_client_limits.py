"""Limits on the connections and bytes that all clients together may hold."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.gateway.http.client_limits import COPIES, ClientLimits, HeldRequest, TurnedAway, open_files_limit
from headway.gateway.http.keys import Keys
from headway.gateway.http.options import MIB
from headway.gateway.http.refusal import GatewayError
from tests.gateway.fleets import until
from tests.gateway.front import PROMPT, Front, gateway
from tests.gateway.upstream import Turn, upstream

KEYS = Keys({b"k1": "", b"k2": "blue", b"k3": "red"})
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%b\r\n"
BLUE, RED = b"Authorization: Bearer k2\r\n", b"Authorization: Bearer k3\r\n"


@dataclass(eq=False)
class Guest:
    """A connection that notes why it had to go."""

    turned_away: list[GatewayError] = field(default_factory=list)

    def turn_away(self, refusal: GatewayError) -> None:
        self.turned_away.append(refusal)


def limits_for(connections: int = 3, max_bytes: int = 800) -> ClientLimits:
    return ClientLimits(
        max_bytes, (8 * connections + 2) // 3
    )  # of few files a quarter is kept, of the rest half


def hold(limits: ClientLimits, request: HeldRequest, size: int) -> None:
    request.size = size
    limits.hold(request)


# ---- the limits by themselves --------------------------------------------------------------------------------------


def test_a_new_connection_takes_the_place_of_the_first_that_showed_no_key() -> None:
    limits, guests = limits_for(), [Guest() for _ in range(4)]
    assert all(limits.enter(guest, 5) for guest in guests[:3])
    limits.admit(HeldRequest(guests[0]), "")
    assert limits.enter(guests[3], 5)
    assert [bool(guest.turned_away) for guest in guests] == [False, True, False, False]
    assert (limits.connections, limits.turned_away[TurnedAway.DISPLACED]) == (3, 1)


def test_a_connection_is_refused_where_all_others_have_shown_a_key(caplog: pytest.LogCaptureFixture) -> None:
    limits, guests = limits_for(), [Guest() for _ in range(3)]
    for guest in guests:
        assert limits.enter(guest, 5)
        limits.admit(HeldRequest(guest), "")
    with caplog.at_level(logging.WARNING):
        assert not limits.enter(Guest(), 5)
        assert not limits.enter(Guest(), 5)
    assert [record.message for record in caplog.records] == [caplog.records[0].message]
    assert "3 connections are open" in caplog.text
    assert (limits.connections, limits.turned_away[TurnedAway.FULL]) == (3, 2)
    limits.leave(guests[0])
    limits.leave(guests[0])
    assert limits.enter(Guest(), 5)


def test_the_last_files_of_the_process_are_kept() -> None:
    limits = limits_for()
    assert limits.enter(Guest(), 5)
    assert limits.enter(Guest(), 6)  # the first goes
    assert not limits_for().enter(Guest(), 6)


def test_bytes_without_a_key_are_those_of_the_newest() -> None:
    limits, old, new = limits_for(max_bytes=800), Guest(), Guest()
    first, second = HeldRequest(old), HeldRequest(new)
    hold(limits, first, 60)
    hold(limits, second, 50)
    assert old.turned_away[0].status == 429
    assert (limits.held_bytes, first.released, new.turned_away) == (50, True, [])
    with pytest.raises(GatewayError, match="accepted: 100 of requests whose key has not been checked"):
        hold(limits, second, 101)
    assert limits.held_bytes == 0


def test_a_tenant_takes_no_more_than_is_left_to_others() -> None:
    limits = limits_for(max_bytes=800)
    blue, red = HeldRequest(Guest()), HeldRequest(Guest())
    limits.admit(blue, "blue")
    limits.admit(red, "red")
    hold(limits, blue, 350)
    with pytest.raises(GatewayError, match="of a tenant as many as are still free"):
        hold(limits, blue, 351)
    hold(limits, red, 175)
    with pytest.raises(GatewayError, match="--max-buffered-mib"):
        hold(limits, red, 176)
    operator = HeldRequest(Guest())
    limits.admit(operator, "")
    hold(limits, operator, 175)
    with pytest.raises(GatewayError, match="accepted: 700 in all"):
        hold(limits, operator, 176)


@given(st.data())
def test_whatever_comes_the_bytes_add_up_and_stay_within_their_limits(data: st.DataObject) -> None:
    limits, requests = limits_for(connections=4, max_bytes=800), list[HeldRequest]()
    for _ in range(data.draw(st.integers(1, 40))):
        what = data.draw(st.sampled_from(["come", "grow", "grow", "admit", "release", "leave"]))
        if what == "come" or not requests:
            request = HeldRequest(Guest())
            if limits.enter(request.connection, 3):
                requests.append(request)
            continue
        request = data.draw(st.sampled_from(requests))
        try:
            if what == "grow":
                hold(limits, request, request.size + data.draw(st.integers(0, 300)))
            elif what == "admit":
                limits.admit(request, data.draw(st.sampled_from(["", "blue", "red"])))
            elif what == "release":
                limits.release(request)
            else:
                limits.leave(request.connection)
        except GatewayError:
            pass
        held = [each for each in requests if not each.released]
        assert limits.held_bytes == sum(each.counted for each in held) <= limits.max_bytes
        unchecked = sum(each.counted for each in held if each.tenant is None)
        assert unchecked <= limits.max_unauthenticated_bytes
        assert limits.connections <= limits.max_connections
    for request in requests:
        limits.release(request)
        limits.leave(request.connection)
    assert (limits.held_bytes, limits.connections) == (0, 0)


@pytest.mark.parametrize(
    ("soft", "connections"),
    [(1024, 480), (100, 37), (2**16, 2**15 - 32), (resource.RLIM_INFINITY, 2**19 - 32)],
)
def test_connections_are_half_of_the_open_files(
    soft: int, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _kind: (soft, resource.RLIM_INFINITY))
    assert ClientLimits(800, open_files_limit()).max_connections == connections


# ---- the gateway behind it ------------------------------------------------------------------------------------------


async def connected(front: Front, said: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(front.url.rpartition(":")[2]))
    writer.write(said)
    return reader, writer


@asynccontextmanager
async def sent(front: Front, *said: bytes) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Connections that have each said this, and say nothing more."""
    pairs = [await connected(front, each) for each in said]
    try:
        yield [reader for reader, _ in pairs]
    finally:
        for _, writer in pairs:
            writer.close()


async def status_of(reader: asyncio.StreamReader) -> int:
    return int((await asyncio.wait_for(reader.readuntil(b"\r\n"), 30)).split()[1])


async def test_bodies_that_wait_are_bounded_in_sum_and_others_are_served() -> None:
    body = b"x" * MIB
    async with (
        upstream() as instance,
        gateway(instance, keys=KEYS, max_body_mib=2, max_buffered_mib=16) as front,
    ):
        limits = front.app.limits
        slow = [POST % (2 * MIB, BLUE) + body] * 12
        async with sent(front, *slow):
            # Of 14 MiB blue gets half, and a body counts twice.
            await until(lambda: limits.turned_away[TurnedAway.BYTES] == 12 - 3)
            assert limits.held_bytes <= 7 * MIB
            assert (await front.post(PROMPT, Authorization="Bearer k3")).status == 200
            assert (await front.post(PROMPT, Authorization="Bearer k2")).status == 200
        await until(lambda: not limits.held_bytes)


async def test_what_is_held_is_held_until_the_answer_ends() -> None:
    going = asyncio.Event()

    async def late(turn: Turn) -> None:
        await going.wait()
        await turn.whole()

    async with upstream(act=late) as instance, gateway(instance, keys=KEYS) as front:
        answer = asyncio.create_task(front.post(PROMPT, Authorization="Bearer k2"))
        await until(lambda: instance.turns)
        size = len(json.dumps(PROMPT))
        assert COPIES * size < front.app.limits.held_bytes < COPIES * size + 1000
        going.set()
        assert (await answer).status == 200
        assert front.app.limits.held_bytes == 0


async def test_pipelined_requests_are_held_too() -> None:
    going = asyncio.Event()

    async def late(turn: Turn) -> None:
        await going.wait()
        await turn.whole()

    body = json.dumps(PROMPT).encode()
    async with upstream(act=late) as instance, gateway(instance, keys=KEYS) as front:
        one = POST % (len(body), BLUE) + body
        filled = POST % (len(body), BLUE + b"X-A: %b\r\n" % (b"a" * 7_000)) + body
        async with sent(front, one + filled * 3) as [reader]:
            await until(lambda: front.app.limits.held_bytes > 20_000)
            going.set()
            await until(lambda: len(instance.turns) == 4 and not front.app.limits.held_bytes)
            assert (await reader.read(2**16)).startswith(b"HTTP/1.1 200")


async def test_heads_that_never_end_are_displaced_by_newer_ones() -> None:
    head = b"GET /health HTTP/1.1\r\nX-A: " + b"a" * 60_000
    async with (
        upstream() as instance,
        gateway(instance, keys=KEYS, max_body_mib=1, max_buffered_mib=5) as front,
    ):
        limits = front.app.limits
        async with sent(front, *[head] * 15) as readers:
            await until(lambda: limits.turned_away[TurnedAway.DISPLACED] >= 5)
            assert limits.held_bytes <= limits.max_unauthenticated_bytes
            assert await status_of(readers[0]) == 429
            assert (await front.post(PROMPT, Authorization="Bearer k3")).status == 200
        await until(lambda: not limits.held_bytes)


async def test_idle_connections_make_room_and_what_runs_goes_on() -> None:
    going = asyncio.Event()

    async def late(turn: Turn) -> None:
        await turn.begin()
        await turn.token()
        await going.wait()
        await turn.raw(b"data: [DONE]\n\n")

    async with upstream(act=late) as instance, gateway(instance, keys=KEYS) as front:
        front.app.limits.max_connections = 4
        stream = asyncio.create_task(front.post({**PROMPT, "stream": True}, Authorization="Bearer k2"))
        await until(lambda: instance.turns)
        async with sent(front, *[b""] * 6) as readers:
            await until(lambda: front.app.limits.turned_away[TurnedAway.DISPLACED] == 3)
            assert await status_of(readers[0]) == 503
            assert (await front.get("/metrics", Authorization="Bearer k1")).status == 200
            going.set()
            assert (await stream).events


async def test_a_connection_too_many_is_refused_at_once_and_figures_say_so() -> None:
    async with upstream() as instance, gateway(instance, keys=KEYS) as front:
        assert (await front.get("/v1/models", Authorization="Bearer k1")).status == 200
        front.app.limits.max_connections = 1
        async with sent(front, b"") as [reader]:
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert b"connection: close" in head
            assert json.loads(body)["error"]["code"] == "too_many_connections"
        figures = (await front.get("/metrics", Authorization="Bearer k1")).body
        for line in (b"connections 1.0", b"connections_max 1.0", b'turned_away_total{reason="full"} 1.0'):
            assert b"headway_gateway_" + line in figures


async def test_a_body_that_nobody_reads_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.gateway.http.connection.MAX_IGNORED_BYTES", MIB)
    async with upstream() as instance, gateway(instance, keys=KEYS) as front:
        reader, writer = await connected(front, POST % (2**40, b""))
        assert await status_of(reader) == 401
        while not (reader.exception() or reader.at_eof()):
            writer.write(b"x" * 2**18)
            await asyncio.sleep(0.01)
        writer.transport.abort()


@pytest.mark.parametrize(("key", "status"), [(BLUE, 413), (b"", 401)])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings"])
async def test_a_client_that_sends_all_of_its_body_first_reads_why_it_was_refused(
    path: str, key: bytes, status: int
) -> None:
    size = 8 * MIB
    async with upstream() as instance, gateway(instance, keys=KEYS, max_body_mib=1) as front:
        for framing in (b"Content-Length: %d\r\n" % size, b"Transfer-Encoding: chunked\r\n"):
            reader, writer = await connected(front)
            writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\n%b%b\r\n" % (path.encode(), key, framing))
            for _ in range(size // MIB):
                chunk = b"x" * MIB
                writer.write(chunk if b"Length" in framing else b"100000\r\n" + chunk + b"\r\n")
                await writer.drain()
            if b"chunked" in framing:
                writer.write(b"0\r\n\r\n")
            assert await status_of(reader) == status
            assert front.app.limits.held_bytes == 0
            writer.close()


@pytest.mark.parametrize("pause_s", [0.02, 0.1])
async def test_a_body_has_a_least_rate_and_a_longest_time(
    pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte now and then is no body; nor does what came fast before make a pause longer."""
    monkeypatch.setattr("headway.gateway.http.asgi_client.STALLED_S", 0.3)
    async with upstream() as instance, gateway(instance) as front:
        reader, writer = await connected(front, POST % (MIB, b"") + b"{" * 2**19)
        answer = asyncio.create_task(reader.readuntil(b"\r\n"))
        while not answer.done():
            writer.write(b"{")
            await asyncio.sleep(pause_s)
        assert b" 408 " in await answer
        writer.close()


async def test_a_body_has_a_longest_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.gateway.http.asgi_client.LONGEST_BODY_S", 0.3)
    async with upstream() as instance, gateway(instance) as front:
        reader, writer = await connected(front, POST % (2**23, b""))
        answer = asyncio.create_task(reader.readuntil(b"\r\n"))
        while not answer.done():
            writer.write(b"{" * 2**10)
            await asyncio.sleep(0.02)
        assert b" 408 " in await answer
        writer.close()
