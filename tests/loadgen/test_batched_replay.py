"""Traces sent in batches, through a gateway of the replay's own."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from headway.core.record import Outcome, Record
from headway.errors import ConfigError, UpstreamError
from headway.gateway.request.central_queue import CentralBatching
from headway.lab.batched_replay import replay_batches
from headway.loadgen import ReplayOptions
from headway.predict.steps.kept_batch_times import BatchTimes
from headway.routing.magnus import BatchSettings
from headway.traces import TraceRequest

if TYPE_CHECKING:
    from tests.loadgen.conftest import FakeServer, Stream


def batching(**settings: Any) -> CentralBatching:
    """Batches of fixed size."""
    told = BatchSettings(capacity_tokens=1_000_000, **settings)
    return CentralBatching(row="vs", settings=told, times=BatchTimes(time.monotonic))


def requests(count: int) -> list[TraceRequest]:
    return [TraceRequest(f"{number}", 0.0, 20, 4) for number in range(count)]


async def test_whole_batches_go_to_all_servers_and_every_request_is_recorded_once(
    server: FakeServer, other_server: FakeServer
) -> None:
    at_once = asyncio.Barrier(2)  # two are answered at a time, whether of one batch or of two
    running: Counter[str] = Counter()
    most = 0

    async def answer(stream: Stream) -> None:
        nonlocal most
        host = stream.request.host
        running[host] += 1
        most = max(most, *running.values())
        await at_once.wait()
        await stream.answer_in_full()
        running[host] -= 1

    server.answer = other_server.answer = answer
    kept: list[Record] = []
    report = await replay_batches(
        requests(8),
        ReplayOptions(url=server.url),
        batching(batch_size=2),
        (server.url, other_server.url),
        on_record=kept.append,
    )
    assert [(record.outcome, record.output_tokens) for record in kept] == [(Outcome.FINISHED, 4)] * 8
    assert sorted(record.id for record in kept) == sorted(f"{number}" for number in range(8))
    assert report.batches is not None
    assert report.batches.members == len(server.bodies) + len(other_server.bodies) == 8
    assert most <= 2


async def test_the_servers_key_is_the_replays(server: FakeServer) -> None:
    options = ReplayOptions(url=server.url, api_key="secret")
    await replay_batches(requests(1), options, batching(), (server.url,))
    assert server.tokens == {"Bearer secret"}


async def test_what_was_stopped_is_recorded_as_cancelled(server: FakeServer) -> None:
    stop = asyncio.Event()

    async def hang(stream: Stream) -> None:
        stop.set()
        await asyncio.Event().wait()

    server.answer = hang
    report = await replay_batches(
        requests(3), ReplayOptions(url=server.url), batching(batch_size=1), (server.url,), stop=stop
    )
    assert report.interrupted
    assert [record.outcome for record in report.records] == [Outcome.CANCELLED] * 3


async def test_a_server_twice_or_one_that_is_not_there_is_refused(server: FakeServer) -> None:
    options = ReplayOptions(url=server.url)
    with pytest.raises(ConfigError, match="a URL is given twice"):
        await replay_batches(requests(1), options, batching(), (server.url, server.url))
    server.sick = True
    with pytest.raises(UpstreamError, match="is not ready"):
        await replay_batches(requests(1), options, batching(), (server.url,))
    assert server.bodies == []
