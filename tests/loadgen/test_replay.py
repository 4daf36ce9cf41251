from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.errors import ConfigError, RecordError, UpstreamError
from headway.loadgen import ReplayOptions, ReplayReport, replay
from headway.loadgen.replay import VANISHED
from headway.traces import TraceRequest

if TYPE_CHECKING:
    from tests.loadgen.conftest import FakeServer, Stream


def requests(count: int, gap_s: float = 0.0, tokens: int = 4, **fields: Any) -> list[TraceRequest]:
    return [TraceRequest(str(n), n * gap_s, 20 + n, tokens, **fields) for n in range(count)]


async def send(server: FakeServer, trace: list[TraceRequest], **options: Any) -> ReplayReport:
    return await replay(trace, ReplayOptions(url=server.url, **options))


async def test_each_request_is_recorded_once_with_its_times(server: FakeServer) -> None:
    trace = requests(5, gap_s=0.01, slo=Slo(ttft_s=2), tenant="blue")
    heard: list[Record] = []
    options = ReplayOptions(url=server.url, token_times=True)
    report = await replay(trace, options, on_record=heard.append)
    assert heard == report.records
    assert not report.interrupted
    records = {record.id: record for record in report.records}
    assert len(records) == len(report.records) == len(report.lateness_s) == 5
    for request in trace:
        record = records[request.id]
        assert (record.outcome, record.error) == (Outcome.FINISHED, None)
        assert (record.arrival_s, record.slo, record.tenant) == (request.arrival_s, request.slo, "blue")
        assert (record.prompt_tokens, record.output_tokens) == (request.input_tokens, 4)
        assert record.token_times_s is not None
        assert record.first_token_s == record.token_times_s[0]
        assert record.finished_s is not None
        times = [record.arrival_s, *record.token_times_s, record.finished_s]
        assert times == sorted(times)
        assert len(record.token_times_s) == 4


async def test_token_times_are_left_out_unless_asked_for(server: FakeServer) -> None:
    report = await send(server, requests(1))
    assert report.records[0].token_times_s is None


async def test_arrivals_are_open_loop_and_connections_have_no_limit(server: FakeServer) -> None:
    """No answer starts before the last request has come: a client that waits for one would wait for ever."""
    everyone = asyncio.Barrier(150)

    async def answer(stream: Stream) -> None:
        await everyone.wait()
        await stream.answer_in_full()

    server.answer = answer
    report = await send(server, requests(150))
    assert [record.outcome for record in report.records] == [Outcome.FINISHED] * 150


async def test_a_turn_is_sent_when_the_answer_before_has_ended(server: FakeServer) -> None:
    first, second, third = requests(3, session="s")
    trace = [first, replace(second, think_s=0.05), replace(third, arrival_s=1000.0, think_s=0.0)]
    records = (await send(server, trace)).records
    assert [record.id for record in records] == ["0", "1", "2"]
    for before, record, think_s in zip(records, records[1:], (0.05, 0.0), strict=False):
        assert record.program == "s"
        assert before.finished_s is not None
        assert record.arrival_s >= before.finished_s + think_s


async def test_stopped_it_sends_no_turn_that_waits(server: FakeServer) -> None:
    first, second = requests(2, session="s")
    stop = asyncio.Event()
    trace = [first, replace(second, think_s=1000.0)]
    options = ReplayOptions(url=server.url)
    report = await replay(trace, options, on_record=lambda record: stop.set(), stop=stop)
    assert report.interrupted
    assert [record.id for record in report.records] == ["0"]


async def test_text_may_hold_any_character_and_chunks_may_be_cut_anywhere(server: FakeServer) -> None:
    async def answer(stream: Stream) -> None:
        write = stream.raw

        async def byte_by_byte(data: bytes) -> None:
            for place in range(len(data)):
                await write(data[place : place + 1])
                await asyncio.sleep(0)

        stream.raw = byte_by_byte  # type: ignore[method-assign]
        for text in ("a\u2028b", "\x85", "é😀", '"\\'):
            await stream.token(text)
        await stream.end()

    server.answer = answer
    report = await send(server, requests(1), token_times=True)
    assert report.records[0].outcome is Outcome.FINISHED
    assert len(report.records[0].token_times_s or ()) == 4


async def test_a_cut_connection_is_a_failure_with_what_came_before(server: FakeServer) -> None:
    async def answer(stream: Stream) -> None:
        await stream.token()
        await stream.token()
        stream.cut()

    server.answer = answer
    record = (await send(server, requests(1))).records[0]
    assert (record.outcome, record.output_tokens) == (Outcome.FAILED, 2)
    assert record.first_token_s is not None
    assert record.error is not None
    assert record.error.startswith("connection failed")
    assert record.error.endswith("after 2 tokens")


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (
            web.json_response({"error": {"message": "prompt too long", "code": 400}}, status=400),
            "prompt too long",
        ),
        (web.Response(status=503, text="queue is full"), "queue is full"),
        (web.Response(status=500), "Internal Server Error"),
    ],
)
async def test_an_http_error_is_a_failure_with_the_servers_reason(
    server: FakeServer, refusal: web.Response, error: str
) -> None:
    server.refusal = refusal
    record = (await send(server, requests(1))).records[0]
    assert (record.outcome, record.error) == (Outcome.FAILED, f"HTTP {refusal.status}: {error}")
    assert record.first_token_s is None


@pytest.mark.parametrize(
    ("code", "kind", "outcome"),
    [
        ("expired", "overloaded", Outcome.EXPIRED),
        ("queue_full", "overloaded", Outcome.SHED),
        ("rate_limit_exceeded", "requests", Outcome.FAILED),  # another server's own limit
    ],
)
async def test_what_a_gateway_refuses_is_told_from_what_fails(
    server: FakeServer, code: str, kind: str, outcome: Outcome
) -> None:
    error = {"message": "too much", "type": kind, "param": None, "code": code}
    server.refusal = web.json_response({"error": error}, status=429)
    record = (await send(server, requests(1))).records[0]
    assert record.outcome is outcome
    assert record.finished_s is not None


@pytest.mark.parametrize(
    ("stop_reason", "outcome"),
    [
        ("headway:shed", Outcome.SHED),
        ("headway:expired", Outcome.EXPIRED),
        ("headway:handed_off", Outcome.HANDED_OFF),
    ],
)
async def test_an_abort_by_the_policy_is_an_outcome_of_its_own(
    server: FakeServer, stop_reason: str, outcome: Outcome
) -> None:
    async def answer(stream: Stream) -> None:
        await stream.end("abort", stop_reason)

    server.answer = answer
    record = (await send(server, requests(1))).records[0]
    assert (record.outcome, record.error, record.output_tokens) == (outcome, None, 0)


async def test_an_answer_of_another_length_is_noted(server: FakeServer) -> None:
    async def answer(stream: Stream) -> None:
        await stream.token()
        await stream.end("stop")

    server.answer = answer
    record = (await send(server, requests(1, tokens=4))).records[0]
    assert (record.outcome, record.error) == (Outcome.FINISHED, "asked for 4 tokens, got 1")
    record = (await send(server, requests(1, tokens=4), plain=True)).records[0]
    assert (record.outcome, record.error, record.output_tokens) == (Outcome.FINISHED, None, 1)


async def test_stopped_it_records_what_is_in_flight_as_cancelled(server: FakeServer) -> None:
    stop = asyncio.Event()
    finished: list[str] = []

    async def answer(stream: Stream) -> None:
        if stream.prompt_tokens < 22:  # requests 0 and 1
            await stream.answer_in_full()
            return
        await stream.token()
        await asyncio.Event().wait()

    def on_record(record: Record) -> None:
        finished.append(record.id)

    async def stop_when_five_are_sent_and_two_have_ended() -> None:
        while len(server.bodies) < 5 or len(finished) < 2:
            await asyncio.sleep(0.001)
        stop.set()

    server.answer = answer
    # The last request is an hour away: it is never sent, and has no record.
    trace = [*requests(5, gap_s=0.02), TraceRequest("late", 3600.0, 5, 5)]
    stopper = asyncio.create_task(stop_when_five_are_sent_and_two_have_ended())
    report = await replay(trace, ReplayOptions(url=server.url), on_record=on_record, stop=stop)
    await stopper
    assert report.interrupted
    assert {record.id: record.outcome for record in report.records} == {
        **dict.fromkeys(("0", "1"), Outcome.FINISHED),
        **dict.fromkeys(("2", "3", "4"), Outcome.CANCELLED),
    }
    assert len(report.records) == 5
    assert all(record.error is None for record in report.records)


async def test_cancelled_it_records_every_request_that_was_sent(server: FakeServer) -> None:
    everyone = asyncio.Barrier(6)

    async def answer(stream: Stream) -> None:
        await stream.token()
        await everyone.wait()
        await asyncio.Event().wait()

    server.answer = answer
    heard: list[Record] = []
    task = asyncio.create_task(replay(requests(5), ReplayOptions(url=server.url), on_record=heard.append))
    await everyone.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(record.id for record in heard) == ["0", "1", "2", "3", "4"]
    assert {record.outcome for record in heard} == {Outcome.CANCELLED}


async def test_clients_that_vanish_cut_their_connection_mid_stream(server: FakeServer) -> None:
    gone = asyncio.Event()

    async def answer(stream: Stream) -> None:
        try:
            while True:
                await stream.token()
                await asyncio.sleep(0.001)
        finally:
            if server.disconnects + 1 >= 10:
                gone.set()

    server.answer = answer
    report = await send(server, requests(10, tokens=50), vanish_fraction=1.0)
    assert {(record.outcome, record.error) for record in report.records} == {(Outcome.CANCELLED, VANISHED)}
    assert all(record.output_tokens < 60 for record in report.records)
    await gone.wait()  # every server side saw its client go


async def test_who_vanishes_is_decided_by_the_seed(server: FakeServer) -> None:
    async def vanished(seed: int) -> set[str]:
        report = await send(server, requests(30, tokens=30), vanish_fraction=0.5, seed=seed)
        return {record.id for record in report.records if record.outcome is Outcome.CANCELLED}

    first = await vanished(1)
    assert 0 < len(first) < 30
    assert await vanished(1) == first
    assert await vanished(2) != first


async def test_a_request_that_takes_too_long_is_given_up(server: FakeServer) -> None:
    async def answer(stream: Stream) -> None:
        await stream.token()
        await asyncio.Event().wait()

    server.answer = answer
    record = (await send(server, requests(1), timeout_s=0.2)).records[0]
    assert record.outcome is Outcome.FAILED
    assert (record.error or "").startswith("timed out after")


async def test_too_long_a_request_is_refused_before_anything_is_sent(server: FakeServer) -> None:
    trace = [*requests(3), TraceRequest("long", 0.1, 998, 3), TraceRequest("longer", 0.2, 2000, 3)]
    with pytest.raises(
        ConfigError, match=r"request 'long', and 1 more like it: 998 input \+ 3 output tokens"
    ):
        await send(server, trace)
    assert server.bodies == []


async def test_too_long_requests_can_be_skipped_and_count_as_failed(server: FakeServer) -> None:
    trace = [*requests(2), TraceRequest("long", 0.0, 998, 3)]
    report = await send(server, trace, skip_too_long=True)
    outcomes = {record.id: record.outcome for record in report.records}
    assert outcomes == {"0": Outcome.FINISHED, "1": Outcome.FINISHED, "long": Outcome.FAILED}
    assert len(server.bodies) == len(report.lateness_s) == 2


async def test_the_model_is_the_first_served_or_the_one_named(server: FakeServer) -> None:
    assert (await send(server, requests(1))).model == "fake"
    assert (await send(server, requests(1), model="other")).model == "other"
    assert [body["model"] for body in server.bodies] == ["fake", "other"]
    with pytest.raises(ConfigError, match=r"model 'third' is not served at .*; served: fake, other"):
        await send(server, requests(1), model="third")


async def test_the_url_may_end_in_v1(server: FakeServer) -> None:
    report = await replay(requests(1), ReplayOptions(url=f"{server.url}/v1/"))
    assert report.records[0].outcome is Outcome.FINISHED


async def test_no_server_is_an_upstream_error(unused_tcp_port: int) -> None:
    with pytest.raises(UpstreamError, match=r"/v1/models does not answer \(ClientConnectorError"):
        await replay(requests(1), ReplayOptions(url=f"http://127.0.0.1:{unused_tcp_port}"))


async def test_an_error_of_the_caller_is_raised_as_it_is(server: FakeServer) -> None:
    def full_disk(_record: Record) -> None:
        raise RecordError("disk is full")

    with pytest.raises(RecordError, match="disk is full"):
        await replay(requests(3), ReplayOptions(url=server.url), on_record=full_disk)


@pytest.mark.parametrize(
    "options",
    [{"url": "127.0.0.1:8000"}, {"vanish_fraction": 1.5}, {"timeout_s": 0.0}, {"timeout_s": float("nan")}],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="accepted"):
        ReplayOptions(**{"url": "http://127.0.0.1:8000", **options})
