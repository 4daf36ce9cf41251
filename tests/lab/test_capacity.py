"""What a server gets through, and streams sent at a share of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from headway.core.record import Outcome
from headway.engine.settings import EngineSettings
from headway.errors import ConfigError, UpstreamError
from headway.json_file import read_json
from headway.lab.capacity import all_finished, at_load, sample
from headway.lab.demo_stream import demo_stream
from headway.lab.policy_bench import PolicyBench, _Pace
from headway.loadgen import ReplayOptions
from headway.results import RunMeta, start_run
from headway.traces import TraceRequest
from tests.gateway.upstream import upstream
from tests.results.examples import make, unfinished

REQUESTS = [TraceRequest(str(number), 0.1 * (number + 1), 10, 5) for number in range(40)]


def test_requests_arrive_at_the_load_in_the_mean() -> None:
    # 40 requests in 4 s; half of a capacity of 5 a second is 2.5, at which they take 16 s.
    sent = at_load(REQUESTS, 0.5, capacity=5.0)
    assert sent[-1].arrival_s == pytest.approx(16.0)
    assert sent[0].arrival_s == pytest.approx(0.4)
    assert [replace(each, arrival_s=0.0) for each in sent] == [
        replace(each, arrival_s=0.0) for each in REQUESTS
    ]


@pytest.mark.parametrize("load", [0.0, -1.0, float("inf"), float("nan")])
def test_a_load_that_is_none_is_refused(load: float) -> None:
    with pytest.raises(ConfigError, match=r"--load is .*; accepted: a finite number above 0"):
        at_load(REQUESTS, load, capacity=5.0)


def test_requests_that_come_all_at_once_have_no_load() -> None:
    with pytest.raises(
        ConfigError, match="--load is 1 and all 1 requests arrive at 0 s; accepted: requests that"
    ):
        at_load([TraceRequest("a", 0.0, 10, 5)], 1.0, capacity=5.0)


def test_a_sample_has_the_lengths_of_the_whole_stream() -> None:
    # The demo's answers have a heavy tail: of its first 120 requests the mean prompt is 20 % off.
    stream = demo_stream()
    some = sample(stream, 120)
    assert len(some) == 120
    assert fmean(each.input_tokens for each in some) == pytest.approx(
        fmean(each.input_tokens for each in stream), rel=0.1
    )
    assert fmean(each.output_tokens for each in some) == pytest.approx(
        fmean(each.output_tokens for each in stream), rel=0.1
    )
    assert sample(stream[:3], 120) == [replace(each, id=f"capacity-{each.id}") for each in stream[:3]]


def test_a_request_that_does_not_finish_leaves_no_capacity() -> None:
    with pytest.raises(UpstreamError, match="2 of 3 requests did not finish: shed"):
        all_finished([make("a"), unfinished("b", Outcome.SHED, 0.0, 1.0)], 3)


async def test_the_first_policys_server_is_measured_and_the_stream_sent_at_the_load(tmp_path: Path) -> None:
    told: list[str] = []
    async with upstream("vllm") as server:
        bench = PolicyBench(
            model="demo",
            policies=("vllm", "headway"),
            requests=REQUESTS,
            out=tmp_path,
            settings=EngineSettings(),
            load=0.5,
        )
        start_run(tmp_path, bench._meta())
        pace, options = _Pace(REQUESTS), ReplayOptions(url=server.url)
        for policy in bench.policies:
            await asyncio.to_thread(bench._work_through_burst, policy, 0.5, pace, options, told.append)
    meta = read_json(tmp_path / "run.json", RunMeta)
    assert meta is not None
    assert meta.capacity_rps is not None
    assert meta.load == 0.5
    assert pace.requests == at_load(REQUESTS, 0.5, meta.capacity_rps)
    assert told == [
        "vllm: sending 40 requests at once",
        f"capacity: {meta.capacity_rps:.3g} requests a second; load: {meta.offered}",
        "headway: sending 40 requests at once",
    ]
    assert len(server.bodies) == 80
