from __future__ import annotations

from pathlib import Path
from typing import cast

import msgspec
import pytest

from headway.engine.stepped_engine import SteppedEngine
from headway.errors import RecordError
from headway.experiments.adaptivellm_real import (
    FILE,
    RealResult,
    RealRuns,
    RealSizes,
    real_data,
    real_part,
    real_requests,
    real_runs,
    real_seconds,
    run_real_policies,
)
from headway.results import summarize
from headway.traces import TraceRequest
from tests.experiments.test_real_engine import StubEngine
from tests.results.examples import make

FEW = [TraceRequest(str(number), 0.0, 5, 1 + number % 2, max_output_tokens=2) for number in range(4)]


def rounds(policy: str, *ends_s: float) -> RealResult:
    """Two requests in each round, done at its end."""
    summaries = [summarize([make(id_, finished_s=end_s, preemptions=1) for id_ in "ab"]) for end_s in ends_s]
    return RealResult(policy=policy, summaries=tuple(summaries))


RUNS = RealRuns(
    hardware="2 x abacus", requests=2, results=(rounds("vllm-v0", 8.0, 12.0), rounds("adaptivellm", 5.0, 5.0))
)


def test_the_workload_is_the_groups_own_beginning_all_at_once() -> None:
    requests = real_requests(50)
    assert len(requests) == 50
    assert {request.arrival_s for request in requests} == {0.0}
    assert {request.max_output_tokens for request in requests} == {64}


def test_the_engine_has_the_papers_kv_tokens_in_larger_blocks() -> None:
    sizes = RealSizes()
    assert (sizes.blocks * sizes.block_tokens, sizes.host_blocks * sizes.block_tokens) == (128 * 16, 64 * 16)
    flags = sizes.flags()
    assert flags[flags.index("--num-gpu-blocks-override") + 1] == "65"  # one is vLLM's null block
    host = sizes.settings("adaptivellm").host_kv
    assert host is not None
    assert host.blocks == 32


def test_policies_take_turns_and_the_warm_up_is_not_counted() -> None:
    engine, told = StubEngine(), list[str]()
    found = run_real_policies(
        cast(SteppedEngine, engine),
        FEW,
        policies=("vllm-v0", "sjf"),
        sizes=RealSizes(),
        rounds=2,
        tell=told.append,
    )
    assert [result.policy for result in found] == ["vllm-v0", "sjf"]
    assert [summary.finished for result in found for summary in result.summaries] == [4, 4, 4, 4]
    assert told[:3] == [
        "real engine: vllm-v0, round 1 of 2",
        "real engine: sjf, round 1 of 2",
        "real engine: vllm-v0, round 2 of 2",
    ]


def test_means_are_over_rounds_and_gains_over_the_first_policy() -> None:
    # 2 requests in 8 s and in 12 s: 0.25 and 0.1667 a second, in the mean 0.2083; in 5 s: 0.4.
    [table] = real_part(RUNS).tables
    assert table.measured_on == "real engine, 2 x abacus"
    assert table.rows[0][:3] == ["vllm-v0", pytest.approx(0.2083, abs=1e-4), 1.0]
    assert table.rows[1][:3] == ["adaptivellm", pytest.approx(0.4), pytest.approx(1.92)]
    data = real_data(RUNS)
    assert data is not None
    assert msgspec.to_builtins(data)["adaptivellm"]["preemptions"] == 2


def test_what_was_not_run_says_so() -> None:
    assert real_data(None) is None
    assert real_part(None).text[0].startswith("Not run: --quick leaves it out.")


def test_what_is_kept_is_not_measured_again(tmp_path: Path) -> None:
    assert real_seconds(tmp_path) > 60
    (tmp_path / FILE).write_bytes(msgspec.json.encode(RUNS))
    assert real_seconds(tmp_path) == 0
    assert real_runs(tmp_path, lambda line: None) == RUNS


def test_what_is_kept_and_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("[]")
    with pytest.raises(RecordError, match=FILE):
        real_runs(tmp_path, lambda line: None)


@pytest.mark.engine
def test_they_swap_and_recompute_on_the_real_engine() -> None:
    sizes = RealSizes()
    engine = SteppedEngine("demo", sizes.flags(), sizes.settings("vllm-v0"))
    try:
        found = run_real_policies(engine, real_requests(100), sizes=sizes, rounds=1)
    finally:
        engine.close()
    by_policy = {result.policy: result.summaries[0] for result in found}
    assert all(summary.finished == 100 for summary in by_policy.values())
    assert by_policy["vllm-v0"].swapped_out_blocks == 0
    assert by_policy["vllm-s"].recomputed_tokens == 0
    assert by_policy["vllm-s"].swapped_out_blocks > 0
