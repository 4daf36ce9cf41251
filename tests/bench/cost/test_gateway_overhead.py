"""The figures of `bench/cost/gateway_overhead.py` by hand, and its stub and client against each other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import pairwise

import msgspec
import pytest

from bench.cost import gateway_proxies
from bench.cost.gateway_overhead import (
    CHUNKS,
    CONNECTIONS,
    Bench,
    Turn,
    arrivals,
    problems,
    report,
    saturated,
    streamed,
    turn_of,
)
from bench.cost.gateway_proxies import DIRECT, Client, Heard, chat, completion
from bench.cost.sse_servers import DONE, STAMP_DIGITS, chat_event, event
from headway.lab.server import RunningServer


def turn(ttfb_ms: list[float], token_ms: list[float], *, wall_s: float = 1.0, cpu_s: float = 0.0) -> Turn:
    return Turn(ttfb_ms, token_ms, len(ttfb_ms), wall_s, cpu_s)


def test_what_is_added_is_over_the_same_round_of_talking_directly() -> None:
    # Rounds of 1.0, 1.4 and 9 ms against 0.5, 0.6 and 8.7: 0.5, 0.8 and 0.3 ms more, so 0.5.
    mine = [turn([first] * 3, [first / 10] * 3) for first in (1.0, 1.4, 9.0)]
    base = [turn([first] * 3, [0.05] * 3) for first in (0.5, 0.6, 8.7)]
    found = streamed(mine, base)
    assert found["ttfb_p50_ms"]["median"] == pytest.approx(1.4)
    assert found["ttfb_added_p50_ms"]["median"] == pytest.approx(0.5)
    assert found["ttfb_added_p50_ms"]["spread"] == pytest.approx((0.3, 0.8))
    assert found["token_added_p99_ms"]["median"] == pytest.approx(0.14 - 0.05)


def test_cpu_time_is_put_over_requests_and_over_chunks() -> None:
    # 3 ms of CPU for 2 requests of 5 chunks each.
    found = streamed([turn([1.0] * 2, [1.0] * 10, cpu_s=0.003)], [turn([1.0], [1.0])])
    assert found["cpu_us_per_request"]["median"] == pytest.approx(1500)
    assert found["cpu_us_per_token"]["median"] == pytest.approx(300)


def test_saturation_is_a_rate_and_what_it_took_of_the_core() -> None:
    found = saturated([turn([1.0] * requests, [], wall_s=2.0, cpu_s=1.9) for requests in (4000, 5000, 6000)])
    assert found["rps"] == {"median": 2500.0, "spread": (2000.0, 3000.0)}
    assert found["core_used"]["median"] == pytest.approx(0.95)
    assert found["cpu_us_per_request"]["median"] == pytest.approx(380)


def test_requests_that_fail_give_no_figures_and_are_told() -> None:
    heard = [
        Heard(1_000_000, 3_000_000, 9_000_000, [500_000, 700_000], None, whole=True),
        Heard(1_000_000, 3_000_000, 9_000_000, [100_000], "HTTP 503"),
    ]
    found = turn_of(heard, 1.0, 0.1)
    assert (found.ttfb_ms, found.token_ms, found.requests) == ([2.0], [0.5, 0.7], 2)
    modes = {mode: {DIRECT: [found]} for mode in ("50", "saturated", "chats", "paced")}
    assert problems(modes) == ["HTTP 503"]
    assert report(modes)[DIRECT]["errors"] == 4


def test_arrivals_are_the_same_for_all_of_a_round_and_about_as_many_as_said() -> None:
    times_s = arrivals(200, 10.0, 1)
    assert times_s == arrivals(200, 10.0, 1) != arrivals(200, 10.0, 2)
    assert all(before < after for before, after in pairwise(times_s))
    assert times_s[-1] < 10.0
    assert len(times_s) == pytest.approx(2000, rel=0.1)


# ---- the stub and the client ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def upstream() -> Iterator[RunningServer]:
    with gateway_proxies.stub() as running:
        yield running


@pytest.fixture
def stub(upstream: RunningServer) -> str:
    return upstream.url


@pytest.mark.slow
def test_a_round_on_the_stub_alone_adds_nothing_to_it(upstream: RunningServer) -> None:
    turns = Bench({DIRECT: upstream}, 0.1).rounds(1)
    found = report(turns)[DIRECT]
    assert found["errors"] == 0
    for mode in (*found["rates"].values(), found["paced"]):
        assert mode["ttfb_added_p99_ms"]["median"] == 0.0
        assert mode["token_p50_ms"]["median"] > 0
        assert 0 < mode["cpu_us_per_token"]["median"] < mode["cpu_us_per_request"]["median"]
    assert found["saturated"]["rps"]["median"] > 0
    assert turns["saturated"][DIRECT][0].requests >= CONNECTIONS
    assert len(turns["paced"][DIRECT][0].token_ms) == 100 * 50


def test_an_event_is_a_completion_chunk() -> None:
    sent = event(12, last=True, first=True, with_ids=True)
    assert sent.endswith(b"\n\n")
    chunk = msgspec.json.decode(sent.removeprefix(b"data: "))
    assert chunk["choices"] == [
        {
            "index": 0,
            "text": "12".zfill(STAMP_DIGITS),
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
            "prompt_token_ids": [1, 2, 3, 4],
            "token_ids": [271],
        }
    ]
    role, chunk = (
        msgspec.json.decode(each.removeprefix(b"data: "))
        for each in chat_event(12, last=True, first=True, with_ids=True).split(b"\n\n")[:2]
    )
    assert role["prompt_token_ids"] == [1, 2, 3, 4]
    assert chunk["choices"][0] == {
        "index": 0,
        "delta": {"content": "12".zfill(STAMP_DIGITS)},
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
        "token_ids": [271],
    }
    plain = msgspec.json.decode(event(12, last=False, first=True, with_ids=False).removeprefix(b"data: "))
    assert plain["choices"][0]["token_ids"] is plain["choices"][0]["finish_reason"] is None


async def test_the_client_hears_a_chat_too(stub: str) -> None:
    client = Client(stub)
    heard = await client.one(chat(CHUNKS))
    client.close()
    assert (heard.error, heard.whole, len(heard.under_way_ns)) == (None, True, CHUNKS)


@pytest.mark.parametrize("interval_s", [0.0, 0.002])
async def test_the_client_hears_every_chunk_with_its_time(stub: str, interval_s: float) -> None:
    client = Client(stub)
    heard = await client.one(completion(CHUNKS, interval_s))
    again = await client.one(completion(CHUNKS, interval_s))  # on the same connection
    client.close()
    assert client.heard == [heard, again]
    for each in client.heard:
        assert (each.error, each.whole, len(each.under_way_ns)) == (None, True, CHUNKS)
        assert all(under_way_ns > 0 for under_way_ns in each.under_way_ns)
        assert each.first_ns is not None
        assert each.ended_ns is not None
        assert each.sent_ns < each.first_ns <= each.ended_ns
        # The last chunks may come early by what a timer of uvloop's is off by: a millisecond or so.
        assert each.ended_ns - each.sent_ns >= (CHUNKS - 3) * interval_s * 1e9


async def test_requests_go_out_at_their_times_and_not_before(stub: str) -> None:
    client, began_ns = Client(stub), time.monotonic_ns()
    await client.at_times([0.0, 0.0, 0.05], completion(4, 0.0))
    client.close()
    assert len(client.heard) == 3
    assert max(each.sent_ns for each in client.heard) - began_ns >= 0.049e9


async def test_connections_send_one_request_after_another_until_time_is_up(stub: str) -> None:
    client = Client(stub)
    await client.in_turn(4, 0.05, completion(4, 0.0))
    client.close()
    assert len(client.heard) >= 4
    assert {each.error for each in client.heard} == {None}


async def answered_with(answer: bytes) -> Heard:
    """The client's reading of a server that sends this answer and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    heard = await Client(f"http://{host}:{port}").one(completion(1, 0.0))
    server.close()
    return heard


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (HEAD % len(DONE) + DONE, None),
        (HEAD % 3 + b"abc", "the stream has no end"),
        (HEAD % 10 + b"abc", "the connection was closed"),
        (b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n", "HTTP 429"),
        (b"what?\r\n\r\n", "no HTTP"),
    ],
)
async def test_what_is_wrong_with_an_answer_is_said(answer: bytes, error: str | None) -> None:
    heard = await answered_with(answer)
    assert (heard.error is None) == (error is None)
    assert error is None or error in (heard.error or "")
