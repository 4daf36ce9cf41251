from __future__ import annotations

from pathlib import Path
from typing import cast

import msgspec
import pytest
from headway_reproduce.real_study import (
    FILE,
    RealColumn,
    RealPlan,
    RealResult,
    RealRuns,
    RealSizes,
    real_part,
)

from headway.engine.stepped_engine import SteppedEngine
from headway.lab.papers import PaperRequest
from headway.results import summarize
from headway.traces import TraceRequest
from tests.lab.test_real_engine import StubEngine
from tests.results.examples import make

FEW = [TraceRequest(str(number), 0.0, 5, 1 + number % 2, max_output_tokens=2) for number in range(4)]
SIZES = RealSizes(blocks=64, host_blocks=32, batch_width=8)
PLAN = RealPlan(
    policies=("vllm-v0", "sjf"),
    sizes=SIZES,
    requests=lambda: FEW,
    columns=(RealColumn("throughput_rps", "req/s", over=True), RealColumn("preemptions", "preemptions")),
    what="requests",
    note="Only a test.",
    seconds=90.0,
)


def rounds(policy: str, *ends_s: float) -> RealResult:
    """Two requests in each round, done at its end."""
    summaries = [summarize([make(id_, finished_s=end_s, preemptions=1) for id_ in "ab"]) for end_s in ends_s]
    return RealResult(policy=policy, summaries=tuple(summaries))


RUNS = RealRuns(
    hardware="2 x abacus", requests=2, results=(rounds("vllm-v0", 8.0, 12.0), rounds("sjf", 5.0, 5.0))
)


def test_the_engine_has_the_sizes_it_is_given() -> None:
    flags = SIZES.flags()
    assert flags[flags.index("--num-gpu-blocks-override") + 1] == "65"  # one is vLLM's null block
    settings = SIZES.settings("fastserve")
    assert settings.host_kv is not None
    assert (settings.policy, settings.batch_width, settings.host_kv.blocks) == ("fastserve", 8, 32)


def test_policies_take_turns_and_the_warm_up_is_not_counted() -> None:
    engine, told = StubEngine(), list[str]()
    found = PLAN.run(cast(SteppedEngine, engine), FEW, told.append)
    assert [result.policy for result in found] == ["vllm-v0", "sjf"]
    assert [summary.finished for result in found for summary in result.summaries] == [4, 4, 4, 4]
    assert told[:3] == [
        "real engine: vllm-v0, round 1 of 2",
        "real engine: sjf, round 1 of 2",
        "real engine: vllm-v0, round 2 of 2",
    ]


def test_means_are_over_rounds_and_gains_over_the_first_policy() -> None:
    # 2 requests in 8 s and in 12 s: 0.25 and 0.1667 a second, in the mean 0.2083; in 5 s: 0.4.
    [table] = real_part(RUNS, PLAN).tables
    assert table.measured_on == "real engine, 2 x abacus"
    assert list(table.headings) == ["policy", "req/s", "over vllm-v0", "preemptions"]
    assert table.rows[0] == ["vllm-v0", pytest.approx(0.2083, abs=1e-4), 1.0, 2.0]
    assert table.rows[1] == ["sjf", pytest.approx(0.4), pytest.approx(1.92), 2.0]


def test_what_was_not_run_says_so() -> None:
    assert real_part(None, PLAN).text[0].startswith("Not run: --quick leaves it out.")


def test_what_is_kept_is_not_measured_again(tmp_path: Path) -> None:
    request = PaperRequest(root=tmp_path, jobs=1)
    assert PLAN.measurement.more_seconds(request) == 90
    (tmp_path / FILE).write_bytes(msgspec.json.encode(RUNS))
    assert PLAN.measurement.more_seconds(request) == 0
    assert PLAN.measurement.found(request, lambda line: None) == RUNS


def test_quick_leaves_it_out(tmp_path: Path) -> None:
    request = PaperRequest(root=tmp_path, jobs=1, quick=True)
    assert PLAN.measurement.more_seconds(request) == 0
    assert PLAN.measurement.found(request, lambda line: None) is None
