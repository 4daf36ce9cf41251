"""Batches from one queue to real servers whose KV memory runs out, or that are killed: nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from headway.core.length_estimate import LengthEstimate
from headway.core.record import Outcome, Record
from headway.loadgen import BatchPlan, ReplayOptions, replay_batches
from headway.predict.lengths.facts import RequestFacts
from headway.results import read_records
from headway.traces import TraceRequest
from tests.engine.test_serve_demo import Serving

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(900)]

KV_CACHE = ("--block-size", "32", "--num-gpu-blocks-override", "41", "--max-model-len", "1024")
"""40 blocks beside the null block: 1,280 tokens."""
CHECKED = ("--additional-config", '{"headway": {"check": true}}')
PROMPT_TOKENS, OUTPUT_TOKENS = 20, 960
"""980 tokens are 31 blocks, so one fits; long answers, since on a busy machine members start half a second apart."""


class Halved:
    """Knows every length, and says half of it: 500 tokens are 16 blocks, so two are planned for."""

    def predict(self, facts: RequestFacts) -> LengthEstimate | None:
        return LengthEstimate.around(facts.max_output_tokens / 2)

    def observe(self, facts: RequestFacts, output_tokens: int) -> None:
        """Never learns."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Serving]]:
    """Two servers that hand back whoever they preempt."""
    with ExitStack() as closing:
        started = []
        for name in ("first", "second"):
            folder = tmp_path_factory.mktemp(name)
            started.append(Serving(folder, "--leaving", "out-of-memory", "--", *KV_CACHE, *CHECKED))
            closing.callback(started[-1].close)
        for serving in started:
            serving.wait_ready()
        yield started


def requests(name: str, count: int) -> list[TraceRequest]:
    return [
        TraceRequest(f"{name}{n}", 0.0, PROMPT_TOKENS, OUTPUT_TOKENS, max_output_tokens=OUTPUT_TOKENS)
        for n in range(count)
    ]


def once_and_whole(records: list[Record], trace: list[TraceRequest]) -> None:
    assert sorted(record.id for record in records) == sorted(request.id for request in trace)
    ends = {(record.outcome, record.error, record.output_tokens) for record in records}
    assert ends == {(Outcome.FINISHED, None, OUTPUT_TOKENS)}


async def test_batches_that_run_out_of_memory_are_split_and_every_request_ends_whole(
    servers: list[Serving],
) -> None:
    trace = requests("m", 8)
    first, second = servers
    plan = BatchPlan(
        batches="magnus",
        more_urls=(second.url,),
        predictor=Halved(),
        wma_limit=10**9,
        memory_confidence=0.5,
    )
    report = await replay_batches(trace, ReplayOptions(url=first.url), plan)
    once_and_whole(report.records, trace)
    assert report.batches is not None
    # None of the four batches of two fits, but on a busy machine one may end before the other has grown.
    assert report.batches.out_of_memory >= 1
    assert report.batches.lost_instances == 0
    # The engines' own books: whom they handed back was sent again under another name.
    books = [read_records(serving.records) for serving in servers]
    assert all(books)
    served = [record for book in books for record in book]
    handed_back = [record.id for record in served if record.outcome is Outcome.HANDED_OFF]
    assert len(handed_back) >= report.batches.out_of_memory


async def test_what_a_killed_server_had_is_served_by_the_other(servers: list[Serving]) -> None:
    """It is killed when its batch streams; its members are then in nobody's queue but the client's."""
    first, second = servers
    trace = requests("k", 4)
    plan = BatchPlan(batches="vs", batch_size=1, more_urls=(second.url,))

    async def kill_when_it_streams() -> None:
        while not (second.log.read_text().count("POST /v1/completions") > before):
            await asyncio.sleep(0.01)
        second.process.kill()

    before = second.log.read_text().count("POST /v1/completions")
    killer = asyncio.create_task(kill_when_it_streams())
    report = await replay_batches(trace, ReplayOptions(url=first.url), plan)
    await killer
    once_and_whole(report.records, trace)
    assert report.batches is not None
    assert report.batches.lost_instances == 1
    assert first.url in {record.instance for record in report.records}
