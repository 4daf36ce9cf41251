from __future__ import annotations

from pathlib import Path

from bench.cost.sim_speed import (
    SAMPLED_SHARES,
    MemoryMeter,
    SpeedCase,
    measure,
    memory_samples,
    source_of,
    title,
)
from headway.traces import load_trace

LAW = "gen:poisson:rate=20/input=constant:tokens=64/output=constant:tokens=16/seed=1/count=40"


def test_the_law_stands_in_for_a_trace_that_is_not_there(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv.gz"
    assert source_of(trace, LAW) == title(LAW) == LAW
    trace.touch()
    assert title(source_of(trace, LAW)) == "trace.csv.gz"


def test_a_case_is_run_once_and_counted() -> None:
    run = measure(SpeedCase(load=2.0, policy="edf"), load_trace(LAW))
    assert run["case"] == {"policy": "edf", "load": 2.0, "shortcut": True}
    assert run["steps"] > 16
    assert 0 < run["running"] <= 40
    assert run["simulated_s"] > 0


def test_memory_is_sampled_when_its_share_of_requests_has_ended() -> None:
    found = memory_samples(LAW, None)
    assert [sample["ended"] for sample in found["samples"]] == [int(share * 40) for share in SAMPLED_SHARES]
    assert found["samples"][-1]["live"] == 0
    assert 0 < found["most_live"] <= 40


def test_live_requests_are_those_fed_and_not_ended() -> None:
    requests = load_trace(LAW, 3)
    meter = MemoryMeter(3)
    assert list(meter.feed(requests)) == requests
    assert (meter.arrived, meter.most_live) == (3, 3)


def test_requests_without_output_are_left_out_as_the_commands_leave_them_out(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    lines = (f"2024-05-10 00:00:{n % 60:02}.0,8,{int(n != 3)}" for n in range(40))
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    assert memory_samples(str(trace), None)["requests"] == 39
