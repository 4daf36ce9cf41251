"""Two data-parallel engines behind one server: each schedules by the policy, and every request ends once."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from headway.core.record import Outcome
from headway.loadgen import ReplayOptions, replay
from headway.loadgen.queries import ask_about
from headway.results import read_records
from headway.traces import TraceRequest
from tests.engine.test_serve_demo import Serving, is_alive

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(900)]

REQUESTS = 24


def test_two_data_parallel_engines_serve_by_the_policy(tmp_path: Path) -> None:
    config = '{"headway": {"check": true}}'
    flags = ("--data-parallel-size", "2", "--max-num-seqs", "8", "--additional-config", config)
    serving = Serving(tmp_path, "--policy", "headway", "--slo-ttft", "5", "--", *flags)
    files = [serving.records, serving.records.with_stem("served-dp1")]
    try:
        serving.wait_ready()
        processes = serving.processes()
        trace = [TraceRequest(f"{n}", n * 0.01, 100 + n % 5 * 20, 30) for n in range(REQUESTS)]
        asyncio.run(replay(trace, ReplayOptions(url=serving.url)))
        serving.wait_for(lambda: sum(len(read_records(file)) for file in files) == REQUESTS)
        listed = asyncio.run(ask_about(serving.url, None))["requests"]
        serving.process.send_signal(signal.SIGTERM)
        assert serving.process.wait() == 0
    finally:
        serving.close()
    records = [read_records(file) for file in files]
    assert all(records), "one engine had all requests"
    ended = [record for each in records for record in each]
    assert {record.outcome for record in ended} == {Outcome.FINISHED}
    assert {record.output_tokens for record in ended} == {30}
    assert len({record.id for record in ended}) == REQUESTS
    assert {told["engine"] for told in listed} == {0, 1}
    assert not any(map(is_alive, processes))
