"""The Python API: its page, what it exports, and that it gives what the command line gives."""

from __future__ import annotations

import doctest
import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

import headway
from headway import HeadwayError, Trace, TraceRequest, plan, simulate
from headway.cli import app
from headway.predict.steps.calibration import load_cost_file, write_cost_file
from tests.planner.costs import write_costs

PAGE = Path(__file__).parents[1] / "docs" / "python.md"
HERE: dict[str, Any] = {"hardware": "h100", "model": "Qwen/Qwen3-8B"}
CHATS = "gen:poisson:rate=8/input=sharegpt/output=sharegpt/count=40"


def test_every_example_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert (failed, tried > 15) == (0, True)


def test_every_exported_name_is_on_the_page_and_there() -> None:
    page = PAGE.read_text()
    assert [name for name in headway.__all__ if f"`{name}`" not in page and f"{name}(" not in page] == []
    assert all(getattr(headway, name) for name in headway.__all__)
    assert set(headway.__all__) <= set(dir(headway))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="simulte"):
        _ = headway.simulte


def test_importing_headway_imports_nothing_else() -> None:
    code = (
        "import sys, headway; print([name for name in sys.modules if name.startswith(('headway.', 'numpy'))])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_a_simulation_gives_what_the_command_gives() -> None:
    asked = ["--hardware", "h100", "--model", "Qwen/Qwen3-8B", "--trace", CHATS, "--policies", "vllm,headway"]
    printed = CliRunner().invoke(app, ["simulate", *asked, "--json", "--jobs", "1"])
    [vllm, ours] = simulate(CHATS, **HERE).table()
    told = json.loads(printed.stdout)
    assert vllm == {"policy": "vllm", "load": 1.0, "seed": 0} | told["vllm"]
    assert ours["mean_jct_s"] == told["headway"]["mean_jct_s"]


def test_runs_that_are_kept_are_gone_on_with(tmp_path: Path) -> None:
    first = simulate(CHATS, **HERE, policies=["vllm"], out=tmp_path / "runs")
    again = simulate(CHATS, **HERE, policies=["vllm"], out=tmp_path / "runs")
    assert first.results == again.results
    assert "Goodput and throughput" in str(again)
    with pytest.raises(HeadwayError, match="runs"):
        simulate(CHATS, **HERE, policies=["sjf"], out=tmp_path / "runs")


def test_a_temporary_folder_goes_with_the_simulation() -> None:
    runs = simulate(CHATS, **HERE, policies=["vllm"])
    folder = runs._folder.root
    assert len(runs.records("vllm")) == 40
    with pytest.raises(
        HeadwayError, match="sjf at rate scale 1, seed 0; there are: vllm at rate scale 1, seed 0"
    ):
        runs.records("sjf")
    del runs
    gc.collect()
    assert not folder.exists()


def _request(id_: str, arrival_s: float) -> TraceRequest:
    return TraceRequest(id=id_, arrival_s=arrival_s, input_tokens=9, output_tokens=2)


def test_given_requests_are_sorted_and_never_drawn_anew() -> None:
    late, early = (
        TraceRequest(id=id_, arrival_s=at, input_tokens=9, output_tokens=2)
        for id_, at in (("b", 2), ("a", 1))
    )
    trace = Trace.of([late, early])
    assert [request.id for request in trace.requests(0)] == ["a", "b"] == [r.id for r in trace.requests(7)]
    assert not trace.is_drawn
    with pytest.raises(HeadwayError, match="empty"):
        Trace.of([])


@pytest.mark.parametrize(
    "wrong",
    [
        {"policies": []},
        {"seeds": 0},
        {"jobs": 0},
        {"loads": [1, 1]},
        {"hardware": "h1000"},
        {"parts": {"order": "none"}},
    ],
    ids=str,
)
def test_what_is_not_accepted_is_said_before_anything_runs(wrong: dict[str, Any]) -> None:
    with pytest.raises(HeadwayError):
        simulate(CHATS, **(HERE | wrong))


def test_a_plan_gives_a_command_a_table_and_an_object(tmp_path: Path) -> None:
    found = plan(CHATS, **HERE, gpus=1, policies=["vllm"], budget=2, seeds=2, out=tmp_path)
    assert found.data()["command"] == found.command
    assert "GPUs" in str(found)
    assert (tmp_path / "plan-runs.jsonl").exists()


def _write_trace(path: Path, count: int) -> str:
    rows = "".join(f"{number},90,{20 + number}\n" for number in range(count))
    path.write_text(f"arrival_s,input_tokens,output_tokens\n{rows}")
    return str(path)


def test_a_trace_that_is_written_again_is_simulated_as_it_is_now(tmp_path: Path) -> None:
    counts = []
    for count in (3, 4):
        trace = _write_trace(tmp_path / "trace.csv", count)
        counts += [row["requests"] for row in simulate(trace, **HERE).table()]
    assert counts == [3, 3, 4, 4]


def test_files_that_are_written_again_are_planned_with_as_they_are_now(tmp_path: Path) -> None:
    costs = write_costs(tmp_path / "cost.json", jobs=64, tokens=1024)

    def found(count: int) -> dict[str, Any]:
        trace = _write_trace(tmp_path / "trace.csv", count)
        return plan(
            trace, hardware=str(costs), model="demo", gpus=1, policies=["vllm"], budget=1, seeds=1
        ).data()

    first, longer = found(3), found(4)
    assert (first["requests"], longer["requests"]) == (3, 4)
    assert first["choice"] != longer["choice"]
    slower = msgspec.structs.replace(load_cost_file(costs), machine="measured again", host_s=0.1)
    write_cost_file(costs, slower)
    again = found(4)
    assert "measured again" in again["hardware"]
    assert again["choice"]["mean_jct_s"]["mean"] > longer["choice"]["mean_jct_s"]["mean"]
