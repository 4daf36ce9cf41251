"""`headway serve demo` with host memory: requests are swapped under load, and none is the worse for it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from headway.core.record import Outcome
from headway.loadgen import ReplayOptions, replay
from headway.loadgen.queries import scrape
from headway.results import read_records
from headway.traces import TraceRequest
from tests.engine.demo_kv import KV_BYTES_PER_TOKEN
from tests.engine.test_serve_demo import Serving, is_alive

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

REQUESTS = 24
OUTPUT_TOKENS = 120
KV_CACHE = ("--block-size", "32", "--num-gpu-blocks-override", "41", "--max-model-len", "1024")
"""40 blocks: three requests of 200 to 400 tokens fill them, eight are let in."""
BLOCK_BYTES = 32 * KV_BYTES_PER_TOKEN
BYTES_PER_S = 2e8
CHECKED = ("--max-num-seqs", "8", "--additional-config", '{"headway": {"check": true}}')


@pytest.mark.long
def test_memory_for_less_than_a_block_is_told_below_all_tracebacks(tmp_path: Path) -> None:
    serving = Serving(tmp_path, "--policy", "fastserve", "--host-kv-gib", "1e-9", "--", *KV_CACHE)
    try:
        assert serving.process.wait() == 1
    finally:
        serving.close()
    log = serving.log.read_text()
    reason = f"error: host_kv.gib is 1e-09; accepted: at least a block, {BLOCK_BYTES} bytes\n"
    assert log.count(reason) == 1
    assert "Traceback" not in log.partition(reason)[2]


async def test_requests_swapped_under_load_end_once_at_their_full_length(tmp_path: Path) -> None:
    serving = Serving(
        tmp_path,
        *("--policy", "adaptivellm-plus", "--eviction", "swap:min_residency=4"),
        *("--host-kv-gib", "0.1", "--host-kv-bytes-per-s", str(BYTES_PER_S)),
        *("--", *KV_CACHE, *CHECKED),
    )
    try:
        serving.wait_ready()
        processes = serving.processes()
        assert len(processes) >= 3  # API server, engine core, worker
        trace = [TraceRequest(f"{n}", n * 0.01, 200 + n % 5 * 20, OUTPUT_TOKENS) for n in range(REQUESTS)]
        report = await replay(trace, ReplayOptions(url=serving.url))
        serving.wait_for(lambda: len(read_records(serving.records)) == REQUESTS)
        # One request more brings the last totals.
        await replay([TraceRequest("last", 0.0, 1, 1)], ReplayOptions(url=serving.url))
        totals = await scrape(serving.url, "headway_")
        serving.process.send_signal(signal.SIGTERM)
        assert serving.process.wait() == 0
    finally:
        serving.close()
    log = serving.log.read_text()
    assert "KV of requests that are swapped out: 0.1 GiB of host memory, at 2e+08 bytes/s" in log
    assert [record.outcome for record in report.records] == [Outcome.FINISHED] * REQUESTS
    assert {record.id: record.output_tokens for record in report.records} == {
        request.id: OUTPUT_TOKENS for request in trace
    }
    assert sum(record.swapped_blocks for record in read_records(serving.records)) > 0
    assert totals["headway_swapped_out_blocks_total"] > 0
    assert totals["headway_swapped_in_blocks_total"] > 0
    for way in ("out", "in"):
        copied_bytes = totals[f"headway_swapped_{way}_blocks_total"] * BLOCK_BYTES
        assert totals[f"headway_swap_{way}_seconds_total"] >= 0.99 * copied_bytes / BYTES_PER_S
    assert totals["headway_failed_copies_total"] == totals["headway_policy_faults_total"] == 0
    assert not any(map(is_alive, processes))
