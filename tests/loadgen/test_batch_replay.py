from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from headway.core.record import Outcome
from headway.errors import ConfigError
from headway.loadgen import BatchPlan, ReplayOptions, replay_batches
from headway.loadgen.replay import BatchCounts
from headway.traces import TraceRequest
from tests.loadgen.batches import ROOMY, Times, Told, counts, name_of, requests, send

if TYPE_CHECKING:
    from tests.loadgen.conftest import FakeServer, Stream


async def test_a_batch_is_sent_as_a_whole_and_the_next_when_its_last_member_has_ended(
    server: FakeServer,
) -> None:
    events: list[str] = []
    both = asyncio.Barrier(2)

    async def answer(stream: Stream) -> None:
        await both.wait()  # answers start when both members have come, or never
        events.append(f"start {name_of(stream)}")
        if name_of(stream) in "02":  # one ends well after the other
            await asyncio.sleep(0.05)
        await stream.answer_in_full()
        events.append(f"end {name_of(stream)}")

    server.answer = answer
    records, report = await send(server, requests(4), batch_size=2)
    assert sorted(events[:4]) == ["end 0", "end 1", "start 0", "start 1"]
    assert sorted(events[4:]) == ["end 2", "end 3", "start 2", "start 3"]
    assert counts(report) == BatchCounts(batches=2)
    for record in records.values():
        assert (record.outcome, record.error, record.output_tokens) == (Outcome.FINISHED, None, 4)
        assert (record.instance, record.preemptions) == (server.url, 0)
        times = [record.arrival_s, record.first_scheduled_s, record.first_token_s, record.finished_s]
        assert times == sorted(times)  # type: ignore[type-var]
    assert len(report.lateness_s) == 4


async def test_servers_share_the_queue(server: FakeServer, other_server: FakeServer) -> None:
    at_once = asyncio.Barrier(2)  # neither answers before both are asked

    async def answer(stream: Stream) -> None:
        await at_once.wait()
        await stream.answer_in_full()

    server.answer = other_server.answer = answer
    records, _ = await send(server, requests(6), other_server, batch_size=1)
    assert Counter(record.instance for record in records.values()) == {server.url: 3, other_server.url: 3}


async def test_like_lengths_share_a_batch_and_what_was_learned_is_told(server: FakeServer) -> None:
    # Limits 10, 10 and 500: with (20, 500) the first would waste 10 x 0 + 490 x (20 + (10 + 499) / 2) = 134 505.
    trace = [
        TraceRequest(name, 0.0, 20, tokens, max_output_tokens=tokens)
        for name, tokens in [("a", 10), ("long", 500), ("b", 10)]
    ]
    told, times = Told(), Times()
    records, report = await send(server, trace, batches="magnus", predictor=told, batch_time=times)
    assert {record.predicted_output_tokens for record in records.values()} == {10.0, 500.0}
    assert counts(report).batches == 2
    assert sorted(times.seen) == [(1, 20, 500), (2, 20, 10)]
    assert sorted(told.learned) == [(10, 10), (10, 10), (500, 500)]


async def test_without_a_predictor_lengths_are_planned_at_their_limit(server: FakeServer) -> None:
    trace = requests(2, max_output_tokens=30)
    # Two seats of 20 + 30 tokens fit 100.
    records, report = await send(server, trace, batches="abp", kv_tokens=100)
    assert counts(report).batches == 1
    assert {record.predicted_output_tokens for record in records.values()} == {None}
    _, report = await send(server, trace, batches="abp", kv_tokens=99)
    assert counts(report).batches == 2


async def test_times_are_measured_first_where_the_row_asks_for_them(server: FakeServer) -> None:
    records, report = await send(server, requests(3), batches="magnus", predictor=Told())
    names = [body["request_id"].partition("-")[0] for body in server.bodies]
    assert names[-3:] == ["0", "1", "2"]
    assert set(names[:-3]) == {"profile"}
    # What was measured is nobody's request.
    assert len(records) == 3
    assert counts(report).batches == 1


async def test_a_trace_of_which_nothing_fits_sends_nothing(server: FakeServer) -> None:
    options = ReplayOptions(url=server.url, skip_too_long=True)
    plan = BatchPlan(batches="magnus", kv_tokens=ROOMY)
    report = await replay_batches([TraceRequest("long", 0.0, 998, 3)], options, plan)
    assert [record.outcome for record in report.records] == [Outcome.FAILED]
    assert server.bodies == []


async def test_the_memory_is_what_the_servers_metrics_say(
    server: FakeServer, other_server: FakeServer
) -> None:
    line = 'vllm:cache_config_info{block_size="10",cache_dtype="auto",num_gpu_blocks="%d"} 1.0\n'
    server.metrics_text, other_server.metrics_text = line % 1000, line % 11
    # The smaller has ten blocks beside the null block: 2 x (20 + 30) tokens fit 100, three do not.
    trace = requests(3, max_output_tokens=30)
    _, report = await send(server, trace, other_server, batches="abp", kv_tokens=None)
    assert counts(report).batches == 2


async def test_a_server_that_says_nothing_of_its_memory_must_be_told(server: FakeServer) -> None:
    with pytest.raises(ConfigError, match=r"does not say how much KV memory it has .* or --kv-tokens"):
        await send(server, requests(1), kv_tokens=None)
    server.metrics_text = "up 1\n"
    with pytest.raises(ConfigError, match="does not say how much KV memory it has"):
        await send(server, requests(1), kv_tokens=None)
    assert server.bodies == []


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"batches": "ccb"}, "unknown batches 'ccb'; accepted: vs, vsq, glp, abp, magnus"),
        ({"batches": "vsq"}, "batches 'vsq' exist in the simulator alone"),
        ({"batches": "vs", "kv_tokens": 0}, "capacity_tokens is 0; accepted: 1 or more tokens"),
        ({"batches": "vs", "batch_size": 0}, "batch_size is 0; accepted: 1 or more requests"),
        ({"batches": "vs", "silence_s": 0.0}, "silence_s is 0.0; accepted: a number of seconds above 0"),
        ({"batches": "vs", "more_urls": ("here",)}, "url is 'here'; accepted: a base URL"),
    ],
)
def test_a_plan_that_cannot_be_followed_is_refused(plan: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BatchPlan(**plan)


async def test_a_server_twice_and_clients_that_vanish_are_refused(server: FakeServer) -> None:
    with pytest.raises(ConfigError, match="a URL is given twice"):
        await send(server, requests(1), server)
    options = ReplayOptions(url=server.url, vanish_fraction=0.5)
    with pytest.raises(ConfigError, match="clients of a batch do not vanish"):
        await replay_batches(requests(1), options, BatchPlan(batches="vs", kv_tokens=ROOMY))
