from __future__ import annotations

import asyncio
import threading
import time
from random import Random
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from headway.core.length_estimate import LengthEstimate
from headway.core.record import Outcome, Record
from headway.loadgen import BatchPlan, ReplayOptions, replay_batches
from headway.loadgen.dispatcher import NOBODY_LEFT, TOO_LARGE
from headway.loadgen.replay import BatchCounts
from headway.predict.lengths.facts import RequestFacts
from headway.traces import TraceRequest
from tests.loadgen.batches import ROOMY, Memory, Times, Told, counts, name_of, requests, send

if TYPE_CHECKING:
    from tests.loadgen.conftest import FakeServer, Stream


async def test_a_batch_that_runs_out_of_memory_is_split_and_nothing_is_lost(server: FakeServer) -> None:
    """Predictions are half the truth, so batches are planned that cannot fit."""
    memory = Memory(160)
    server.answer = memory.answer
    trace = requests(12, tokens=40, max_output_tokens=40)
    settings = {"kv_tokens": 160, "predictor": Told(share=0.5), "memory_confidence": 0.5}
    records, report = await send(server, trace, batches="abp", **settings)
    # 4 x (20 + 20) are planned for; 2 x (20 + 40) fit.
    assert counts(report).out_of_memory >= 3
    assert {(record.outcome, record.error) for record in records.values()} == {(Outcome.FINISHED, None)}
    assert {record.output_tokens for record in records.values()} == {40}
    assert max(record.preemptions for record in records.values()) >= 1
    assert memory.held == {}
    # Sent again under another name, since the server may not have let go of the first.
    names = [body["request_id"] for body in server.bodies]
    assert len(set(names)) == len(names)
    assert len(names) == 12 + sum(record.preemptions for record in records.values())


async def test_who_runs_out_of_memory_alone_fails_once_with_a_reason(server: FakeServer) -> None:
    server.answer = Memory(50).answer
    trace = [TraceRequest("big", 0.0, 20, 40), TraceRequest("small", 0.0, 20, 4)]
    records, report = await send(server, trace, batch_size=2)
    assert (records["big"].outcome, records["big"].error) == (Outcome.FAILED, TOO_LARGE)
    assert (records["small"].outcome, records["small"].output_tokens) == (Outcome.FINISHED, 4)
    assert counts(report).out_of_memory == 2


async def test_members_that_have_ended_when_the_batch_fails_are_not_asked_again(server: FakeServer) -> None:
    short_has_ended = asyncio.Event()

    async def answer(stream: Stream) -> None:
        if name_of(stream) == "short":
            await stream.answer_in_full()
            short_has_ended.set()
        elif name_of(stream) == "long":
            await short_has_ended.wait()
            await asyncio.sleep(0.1)
            await stream.end("abort", "headway:handed_off")
        else:
            await stream.answer_in_full()

    server.answer = answer
    trace = [TraceRequest("short", 0.0, 20, 2), TraceRequest("long", 0.0, 20, 9)]
    records, _ = await send(server, trace)
    assert [body["request_id"] for body in server.bodies] == ["short", "long", "long+1"]
    assert {(record.outcome, record.output_tokens) for record in records.values()} == {
        (Outcome.FINISHED, 2),
        (Outcome.FINISHED, 9),
    }


async def test_what_a_server_that_went_away_had_is_served_by_the_others(
    server: FakeServer, other_server: FakeServer
) -> None:
    async def die(stream: Stream) -> None:
        await stream.token()
        server.gone = True
        stream.cut()

    server.answer = die
    records, report = await send(server, requests(8), other_server, batch_size=2)
    assert counts(report).lost_instances == 1
    assert {(record.outcome, record.output_tokens) for record in records.values()} == {(Outcome.FINISHED, 4)}
    assert {record.instance for record in records.values()} == {other_server.url}


@pytest.mark.parametrize("sign", ["models", "health"])
async def test_an_error_of_a_server_whose_engine_has_died_is_no_answer(
    server: FakeServer, other_server: FakeServer, sign: str
) -> None:
    async def report(stream: Stream) -> None:
        server.gone, server.sick = sign == "models", True
        await stream.event({"error": {"message": "the engine is dead"}})

    server.answer = report
    records, report_ = await send(server, requests(4), other_server, batch_size=2)
    assert counts(report_).lost_instances == 1
    assert {(record.outcome, record.instance) for record in records.values()} == {
        (Outcome.FINISHED, other_server.url)
    }


async def test_a_server_that_died_without_a_word_is_found_out(
    server: FakeServer, other_server: FakeServer
) -> None:
    """Its connections stay open, and nothing comes."""

    async def fall_silent(stream: Stream) -> None:
        await stream.token()
        server.gone = True
        await asyncio.Event().wait()

    server.answer = fall_silent
    records, report = await send(server, requests(4), other_server, batch_size=2, silence_s=0.05)
    assert counts(report).lost_instances == 1
    assert {(record.outcome, record.instance) for record in records.values()} == {
        (Outcome.FINISHED, other_server.url)
    }


async def test_a_server_that_is_slow_and_still_there_is_waited_for(server: FakeServer) -> None:
    async def hesitate(stream: Stream) -> None:
        await stream.token()
        await asyncio.sleep(0.3)  # several silences
        await stream.token(tokens=3)
        await stream.end()

    server.answer = hesitate
    records, report = await send(server, requests(2), silence_s=0.05)
    assert counts(report).lost_instances == 0
    assert {(record.outcome, record.output_tokens) for record in records.values()} == {(Outcome.FINISHED, 4)}


async def test_one_alone_on_a_server_that_went_away_is_served_by_another(
    server: FakeServer, other_server: FakeServer
) -> None:
    async def die(stream: Stream) -> None:
        server.gone = True
        stream.cut()

    server.answer = die
    records, _ = await send(server, requests(2), other_server, batch_size=1)
    assert {record.outcome for record in records.values()} == {Outcome.FINISHED}


async def test_a_server_that_comes_back_is_taken_in_again(
    server: FakeServer, other_server: FakeServer
) -> None:
    def come_back() -> None:
        server.gone = False

    async def die_for_a_while(stream: Stream) -> None:
        server.gone, server.answer = True, None
        stream.cut()
        asyncio.get_running_loop().call_later(0.2, come_back)

    server.answer = die_for_a_while
    trace = [*requests(2), TraceRequest("a", 0.8, 20, 4), TraceRequest("b", 0.8, 20, 4)]
    records, report = await send(server, trace, other_server, batch_size=1, silence_s=0.05)
    assert counts(report) == BatchCounts(batches=5, lost_instances=1)
    assert {record.outcome for record in records.values()} == {Outcome.FINISHED}
    assert {records[id_].instance for id_ in "ab"} == {server.url, other_server.url}


async def test_with_no_server_left_everything_fails_once_also_what_comes_later(server: FakeServer) -> None:
    async def die(stream: Stream) -> None:
        server.gone = True
        stream.cut()

    server.answer = die
    trace = [*requests(5), TraceRequest("late", 0.3, 20, 4)]
    records, report = await send(server, trace, batch_size=2)
    assert {(record.outcome, record.error) for record in records.values()} == {(Outcome.FAILED, NOBODY_LEFT)}
    assert counts(report) == BatchCounts(batches=1, lost_instances=1)


async def test_the_only_server_comes_back_and_serves_what_comes_then(server: FakeServer) -> None:
    def come_back() -> None:
        server.gone, server.answer = False, None

    async def die_for_a_while(stream: Stream) -> None:
        server.gone = True
        stream.cut()
        asyncio.get_running_loop().call_later(0.2, come_back)

    server.answer = die_for_a_while
    trace = [*requests(5), TraceRequest("late", 0.8, 20, 4)]
    records, report = await send(server, trace, batch_size=2, silence_s=0.05)
    assert records.pop("late").outcome is Outcome.FINISHED
    assert {(record.outcome, record.error) for record in records.values()} == {(Outcome.FAILED, NOBODY_LEFT)}
    assert counts(report) == BatchCounts(batches=2, lost_instances=1)


async def test_who_failed_while_it_was_judged_is_not_served_by_a_server_that_comes_back(
    server: FakeServer,
) -> None:
    judging, back = threading.Event(), threading.Event()

    class Slow(Told):
        def predict(self, facts: RequestFacts) -> LengthEstimate | None:
            if facts.num_prompt_tokens == 30:
                judging.set()
                back.wait(10)
                time.sleep(0.2)  # until it is taken in again
            return super().predict(facts)

    def come_back() -> None:
        server.gone, server.answer = False, None
        back.set()

    async def die_for_a_while(stream: Stream) -> None:
        while not judging.is_set():
            await asyncio.sleep(0.01)
        server.gone = True
        stream.cut()
        asyncio.get_running_loop().call_later(0.2, come_back)

    server.answer = die_for_a_while
    trace = [
        TraceRequest("served", 0.0, 20, 4),
        TraceRequest("judged", 0.02, 30, 4),
        TraceRequest("late", 0.8, 20, 4),
    ]
    records, _ = await send(server, trace, predictor=Slow(), silence_s=0.05)
    assert records.pop("late").outcome is Outcome.FINISHED
    assert {record.error for record in records.values()} == {NOBODY_LEFT}


async def test_a_cut_connection_to_a_server_that_lives_halves_the_batch_and_then_fails(
    server: FakeServer,
) -> None:
    async def answer(stream: Stream) -> None:
        if name_of(stream).startswith("0"):
            stream.cut()
        await stream.answer_in_full()

    server.answer = answer
    records, report = await send(server, requests(2))
    assert records["1"].outcome is Outcome.FINISHED
    assert records["0"].outcome is Outcome.FAILED
    assert (records["0"].error or "").startswith("connection failed")
    assert counts(report).lost_instances == 0


async def test_a_member_with_an_error_of_its_own_fails_and_the_batch_teaches_nothing(
    server: FakeServer,
) -> None:
    async def answer(stream: Stream) -> None:
        if name_of(stream) == "1":
            await stream.end("error", "broken")
        else:
            await stream.answer_in_full()

    server.answer = answer
    times = Times()
    records, _ = await send(server, requests(3), batch_time=times)
    assert [records[name].outcome for name in "012"] == [Outcome.FINISHED, Outcome.FAILED, Outcome.FINISHED]
    assert times.seen == []
    server.refusal = web.Response(status=400, text="no")
    records, _ = await send(server, requests(1))
    assert records["0"].error == "HTTP 400: no"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
async def test_whatever_goes_wrong_each_request_ends_once(
    server: FakeServer, other_server: FakeServer, seed: int
) -> None:
    """Memory runs out, connections are cut, errors are reported, and half-way one server goes away."""
    chance = Random(seed)

    async def answer(stream: Stream) -> None:
        await asyncio.sleep(chance.random() / 100)
        drawn = chance.random()
        server.gone = server.gone or len(server.bodies) > 30
        if drawn < 0.15:
            await stream.token()
            await stream.end("abort", "headway:handed_off")
        elif drawn < 0.25 or (server.gone and str(stream.request.url.origin()) == server.url):
            await stream.token()
            stream.cut()
        elif drawn < 0.3:
            await stream.event({"error": {"message": "broken"}})
        else:
            await stream.answer_in_full()

    server.answer = other_server.answer = answer
    records, report = await send(
        server, requests(60, gap_s=0.002), other_server, batches="abp", batch_size=6, predictor=Told()
    )
    assert counts(report).lost_instances <= int(server.gone)
    for record in records.values():
        if record.outcome is Outcome.FINISHED:
            assert (record.error, record.output_tokens) == (None, 4)
        else:
            assert record.outcome is Outcome.FAILED
            assert (record.error or "").startswith(
                (TOO_LARGE, "the server reported broken", "connection failed")
            )
    assert Outcome.FINISHED in {record.outcome for record in records.values()}


async def test_stopped_it_records_what_had_come_as_cancelled(server: FakeServer) -> None:
    stop = asyncio.Event()

    async def answer(stream: Stream) -> None:
        if name_of(stream) == "0":
            await stream.answer_in_full()
            return
        await stream.token()
        stop.set()
        await asyncio.Event().wait()

    server.answer = answer
    trace = [*requests(4), TraceRequest("late", 3600.0, 20, 4)]
    plan = BatchPlan(batches="vs", batch_size=2, kv_tokens=ROOMY)
    report = await replay_batches(trace, ReplayOptions(url=server.url), plan, stop=stop)
    assert report.interrupted
    # 0 ended, 1 was being served, 2 and 3 waited; the late one had not come.
    assert {record.id: record.outcome for record in report.records} == {
        "0": Outcome.FINISHED,
        **dict.fromkeys("123", Outcome.CANCELLED),
    }
    assert len(report.records) == 4
    assert len(server.bodies) == 2


async def test_stopped_while_times_are_measured_it_has_nothing(server: FakeServer) -> None:
    stop = asyncio.Event()

    async def answer(stream: Stream) -> None:
        stop.set()
        await asyncio.Event().wait()

    server.answer = answer
    plan = BatchPlan(batches="magnus", kv_tokens=ROOMY)
    report = await replay_batches(requests(2), ReplayOptions(url=server.url), plan, stop=stop)
    assert (report.interrupted, report.records) == (True, [])


async def test_a_predictor_that_raises_is_one_error_and_what_had_come_is_recorded(server: FakeServer) -> None:
    class Broken(Told):
        def predict(self, facts: RequestFacts) -> LengthEstimate | None:
            raise ZeroDivisionError("no idea")

    heard: list[Record] = []
    plan = BatchPlan(batches="abp", kv_tokens=ROOMY, predictor=Broken())
    with pytest.raises(ZeroDivisionError, match="no idea"):
        await replay_batches(requests(2), ReplayOptions(url=server.url), plan, on_record=heard.append)
    assert [record.outcome for record in heard] == [Outcome.CANCELLED] * 2


async def test_a_member_that_the_policy_ended_is_an_outcome_and_the_batch_teaches_nothing(
    server: FakeServer,
) -> None:
    async def answer(stream: Stream) -> None:
        if name_of(stream) == "1":
            await stream.end("abort", "headway:expired")
        else:
            await stream.answer_in_full()

    server.answer = answer
    times = Times()
    records, _ = await send(server, requests(2), batch_time=times)
    assert [records[name].outcome for name in "01"] == [Outcome.FINISHED, Outcome.EXPIRED]
    assert times.seen == []


async def test_another_server_takes_a_half_while_the_first_lets_go(
    server: FakeServer, other_server: FakeServer
) -> None:
    """The first never says that it is idle again, until the other has served."""
    other_has_served = asyncio.Event()
    running = "vllm:num_requests_running %d\nvllm:num_requests_waiting 0\n"
    server.metrics_text = lambda: running % (not other_has_served.is_set())

    async def fail(stream: Stream) -> None:
        if "+" in name_of(stream):
            await stream.answer_in_full()
        else:
            await stream.end("abort", "headway:handed_off")

    async def serve(stream: Stream) -> None:
        if "+" in name_of(stream):
            other_has_served.set()
        await stream.answer_in_full()

    server.answer, other_server.answer = fail, serve
    records, report = await send(server, requests(4), other_server)
    assert counts(report).out_of_memory == 1
    assert other_server.url in {record.instance for record in records.values()}


async def test_stopped_before_a_server_answers_it_has_nothing(server: FakeServer) -> None:
    stop = asyncio.Event()
    stop.set()
    plan = BatchPlan(batches="vs", kv_tokens=ROOMY)
    report = await replay_batches(requests(2), ReplayOptions(url=server.url), plan, stop=stop)
    assert (report.interrupted, report.records) == (True, [])


async def test_the_next_batch_waits_until_the_server_has_let_go(server: FakeServer) -> None:
    """Its metrics say that a request runs until they have been asked twice."""
    asked = 0

    def metrics() -> str:
        nonlocal asked
        asked += 1
        return f"vllm:num_requests_running {int(asked < 3)}\nvllm:num_requests_waiting 0\n"

    async def answer(stream: Stream) -> None:
        if name_of(stream) == "0":
            await stream.end("abort", "headway:handed_off")
        elif name_of(stream) == "1":
            await asyncio.Event().wait()
        else:
            asked_before.append(asked)
            await stream.answer_in_full()

    asked_before: list[int] = []
    server.metrics_text, server.answer = metrics, answer
    records, _ = await send(server, requests(2))
    assert {record.outcome for record in records.values()} == {Outcome.FINISHED}
    assert asked_before == [3, 3]
