"""Traces sent in batches to small servers of our own, and what such a replay needs beside it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from headway.core.length_estimate import LengthEstimate
from headway.core.record import Record
from headway.loadgen import BatchPlan, ReplayOptions, ReplayReport, replay_batches
from headway.loadgen.replay import BatchCounts
from headway.predict.lengths.facts import RequestFacts
from headway.traces import TraceRequest

if TYPE_CHECKING:
    from tests.loadgen.conftest import FakeServer, Stream

ROOMY = 1_000_000


def requests(count: int, tokens: int = 4, gap_s: float = 0.0, **fields: Any) -> list[TraceRequest]:
    return [TraceRequest(f"{n}", n * gap_s, 20, tokens, **fields) for n in range(count)]


async def send(
    server: FakeServer, trace: list[TraceRequest], *more: FakeServer, batches: str = "vs", **plan: Any
) -> tuple[dict[str, Record], ReplayReport]:
    """Records by request, of which there is one each."""
    settings = {"kv_tokens": ROOMY, "more_urls": tuple(other.url for other in more), **plan}
    report = await replay_batches(
        trace, ReplayOptions(url=server.url), BatchPlan(batches=batches, **settings)
    )
    records = {record.id: record for record in report.records}
    assert len(records) == len(report.records)
    assert set(records) == {request.id for request in trace}
    return records, report


def counts(report: ReplayReport) -> BatchCounts:
    assert report.batches is not None
    return report.batches


def name_of(stream: Stream) -> str:
    name: str = stream.body["request_id"]
    return name


class Told:
    """Knows each answer's length by its limit; keeps what it was told."""

    def __init__(self, share: float = 1.0) -> None:
        self.share = share
        self.learned: list[tuple[int, int]] = []

    def predict(self, facts: RequestFacts) -> LengthEstimate | None:
        return LengthEstimate.around(self.share * facts.max_output_tokens)

    def observe(self, facts: RequestFacts, output_tokens: int) -> None:
        self.learned.append((facts.max_output_tokens, output_tokens))


class Times:
    """Believes that a batch takes as long as its answers; keeps what it was told."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int]] = []

    def predict(self, size: int, prompt_tokens: int, output_tokens: int) -> float:
        return output_tokens

    def observe(self, size: int, prompt_tokens: int, output_tokens: int, seconds: float) -> None:
        assert seconds > 0
        self.seen.append((size, prompt_tokens, output_tokens))


class Memory:
    """KV memory of a server, as an engine that hands back whoever finds it full."""

    def __init__(self, capacity_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
        self.held: dict[str, int] = {}

    async def answer(self, stream: Stream) -> None:
        name = name_of(stream)
        try:
            for _ in range(stream.body["max_tokens"]):
                self.held[name] = stream.prompt_tokens + stream.sent_tokens + 1
                if sum(self.held.values()) > self.capacity_tokens:
                    await stream.end("abort", "headway:handed_off")
                    return
                await stream.token()
                await asyncio.sleep(0)
            await stream.end()
        finally:
            self.held.pop(name, None)
