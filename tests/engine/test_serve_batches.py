"""`headway serve --batches` on real engines: memory that runs out, an instance that is killed, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from headway.core.length_estimate import LengthEstimate
from headway.core.record import Outcome, Record
from headway.loadgen import ReplayOptions, replay
from headway.loadgen.queries import scrape
from headway.traces import TraceRequest
from tests.engine.test_serve_demo import Serving

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(900)]

KV_CACHE = ("--block-size", "32", "--num-gpu-blocks-override", "41", "--max-model-len", "1024")
"""40 blocks beside the null block: 1,280 tokens."""
CHECKED = ("--additional-config", '{"headway": {"check": true}}')
PROMPT_TOKENS, LONG_TOKENS, MIDDLE_TOKENS, SHORT_TOKENS = 20, 960, 200, 40
"""980 tokens are 31 blocks, so one long answer fits; long, as on a busy machine members start apart."""
SENT = "headway_gateway_output_tokens_total"
SAID = LengthEstimate(450, 450, 450)
"""What is said of long answers, at most 462 of nine in ten: with the prompt 16 blocks, so two are planned for."""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A central queue before two instances."""
    queue = ("--instances", "2", "--batches", "magnus", "--wma-limit", "1000000000", "--predictor", "none")
    started = Serving(tmp_path_factory.mktemp("serving"), *queue, "--", *KV_CACHE, *CHECKED)
    try:
        started.wait_for(lambda: "2 of 2 instances ready" in started.log.read_text())
        yield started
    finally:
        started.close()


def trace(name: str, long: int, short: int = 0) -> list[TraceRequest]:
    lengths = [LONG_TOKENS] * long + [SHORT_TOKENS] * short
    return [
        TraceRequest(f"{name}{place}", 0.0, PROMPT_TOKENS, tokens) for place, tokens in enumerate(lengths)
    ]


async def served(serving: Serving, requests: list[TraceRequest]) -> list[Record]:
    """One record a request, all finished whole."""
    estimates = {request.id: SAID for request in requests if request.output_tokens == LONG_TOKENS}
    report = await replay(requests, ReplayOptions(url=serving.url, estimates=estimates))
    wanted = {request.id: (Outcome.FINISHED, None, request.output_tokens) for request in requests}
    assert len(report.records) == len(requests)
    assert {each.id: (each.outcome, each.error, each.output_tokens) for each in report.records} == wanted
    return report.records


async def test_batches_that_run_out_of_memory_are_split_and_every_stream_ends_whole(serving: Serving) -> None:
    await served(serving, trace("m", long=8, short=4))
    found = await scrape(serving.url, "headway_gateway_")
    # None of the batches of two fits, but on a busy machine one may end before the other has grown.
    assert found["headway_gateway_queue_batches_split_total"] >= 1
    assert found["headway_gateway_queue_batches_total"] >= 5
    assert found["headway_gateway_queue_batches_waiting"] == 0
    assert found["headway_gateway_requests_total"] == 12


async def test_what_a_killed_instance_had_is_served_by_the_other(serving: Serving) -> None:
    """Its server and engine are killed when batches stream."""

    async def tokens() -> float:
        return (await scrape(serving.url, SENT)).get(SENT, 0.0)

    async def kill_one() -> None:
        while await tokens() < before + 50:
            await asyncio.sleep(0.05)
        os.killpg(min(serving.groups() - {os.getpgid(serving.process.pid)}), signal.SIGKILL)

    before = await tokens()
    killer = asyncio.create_task(kill_one())
    await served(serving, [TraceRequest(f"k{n}", 0.0, PROMPT_TOKENS, MIDDLE_TOKENS) for n in range(6)])
    await killer
    failures = await scrape(serving.url, "headway_gateway_instance_failures")
    assert failures["headway_gateway_instance_failures_total"] >= 1
