from __future__ import annotations

from importlib import import_module
from inspect import signature
from pathlib import Path

import pytest

from headway.cli import COMMANDS
from headway.cli.options import command_of
from tests.cli.conftest import Headway, words

WORKLOAD = "gen:fixed:interval=0.5/input=constant:tokens=8/output=constant:tokens=4/count=5"
SIMULATE = {"hardware": "h100", "model": "Qwen/Qwen3-8B", "policies": "vllm", "num_blocks": 120}
FLAGS: dict[str, dict[str, object]] = {
    "replay": {"url": "http://127.0.0.1:9"},
    "bench": {"model": "demo", "policies": "vllm"},
    "simulate": SIMULATE,
    "plan": {"hardware": "h100", "model": "Qwen/Qwen3-8B", "gpus": 1},
}


@pytest.fixture
def in_seconds(tmp_path: Path) -> Path:
    """A trace with Mooncake's keys whose timestamps are seconds."""
    path = tmp_path / "trace.jsonl"
    rows = (f'{{"timestamp": {place / 2}, "input_length": 60, "output_length": 5}}\n' for place in range(4))
    path.write_text("".join(rows))
    return path


def test_every_command_that_reads_a_trace_takes_the_unit_of_its_times() -> None:
    functions = (getattr(import_module(f"headway.cli.{name}"), name) for name in COMMANDS)
    read = {
        function.__name__ for function in functions if "trace" in signature(command_of(function)).parameters
    }
    assert read == set(FLAGS)


@pytest.mark.parametrize("command", FLAGS)
def test_a_trace_whose_times_are_implausible_is_refused_with_a_hint(
    headway: Headway, in_seconds: Path, tmp_path: Path, command: str
) -> None:
    out = {"out": tmp_path / "out"} if command in ("replay", "bench") else {}
    code, _, err = headway(command, *words(FLAGS[command] | out | {"trace": in_seconds}))
    assert code == 2
    assert "arrivals would be 0.0005 s apart on average" in err
    assert "the unit told by --time-unit s|ms|us|ns" in err
    told = FLAGS[command] | out | {"trace": WORKLOAD, "time_unit": "s"}
    assert headway(command, *words(told)).err.startswith(f"error: --time-unit is 's' for {WORKLOAD}")


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_is_understood_of_a_trace_is_told_once(headway: Headway, in_seconds: Path, jobs: int) -> None:
    flags = SIMULATE | {"rate_scale": "1,2", "seeds": 2, "jobs": jobs}
    for trace, said in (
        (
            {"trace": in_seconds, "time_unit": "s"},
            "4 requests over 1.5 s, 2.67 a second, mean input 60 and output 5 tokens (Mooncake JSON lines, "
            "timestamp: s)",
        ),
        (
            # Not the stream of the other case: a process reads a stream once, and tells of it then.
            {"trace": WORKLOAD.replace("tokens=8", f"tokens={8 + jobs}")},
            f"5 requests over 2 s, 2.5 a second, mean input {8 + jobs} and output 4 tokens (generated)",
        ),
    ):
        code, out, err = headway("simulate", *words(flags | trace))
        assert (code, out) == (0, "")
        assert err.startswith(f"{trace['trace']}: {said}\n")
        assert err.count(" a second, mean") == 1


@pytest.mark.parametrize("command", FLAGS)
def test_a_strict_command_refuses_a_trace_with_an_odd_row(
    headway: Headway, tmp_path: Path, command: str
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,9,1\n1,9,0\n")
    out = {"out": tmp_path / "out"} if command in ("replay", "bench") else {}
    code, _, err = headway(command, *words(FLAGS[command] | out | {"trace": path}), "--strict")
    assert (code, err) == (2, f"error: {path}, line 3: output_tokens is 0; accepted: 1 or more\n")
