"""The programs of `bench/gain/agents.py`, and what its figures say."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from bench.gain.agents import AgentRun, cell, drawn, picture, programs
from bench.gain.agents_real import shrunk
from headway.results import summarize
from headway.traces import TraceRequest

BENCH = str(Path(__file__).parents[3] / "bench" / "gain" / "agents.py")
COLUMNS = ("session", "agent", "seq", "input_tokens", "output_tokens", "think_s")


def recording(folder: Path, rows: list[tuple[object, ...]]) -> Path:
    with gzip.open(folder / "agentic_claude_code.csv.gz", "wt", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    with gzip.open(folder / "agentic_claude_code_prefix.jsonl.gz", "wt") as file:
        file.writelines(f"{json.dumps({'s': row[0], 'i': row[2], 'r': [[1, 16]]})}\n" for row in rows)
    return folder


def test_a_program_ends_at_a_long_pause_and_with_its_session(tmp_path: Path) -> None:
    turns: list[tuple[object, ...]] = [("a", "main", seq, 1024, 9, 5) for seq in range(9)]
    turns[4] = ("a", "main", 4, 1024, 9, 500)  # another program begins
    turns[8] = ("a", "main", 8, 10**6, 9, 5)  # longer than the model reads
    turns.append(("b", "main", 0, 1024, 9, 5))  # one turn alone is no program
    turns.insert(2, ("a", "helper", 99, 1024, 9, 5))
    first, second = programs(recording(tmp_path, turns))
    assert [turn.id for turn in first] == ["0", "1", "2", "3"]
    assert [turn.id for turn in second] == ["4", "5", "6", "7"]
    assert first[0].prefix_blocks == second[0].prefix_blocks == (8, 16)


def test_without_the_recording_a_bench_ends_with_one_line(tmp_path: Path) -> None:
    command = [sys.executable, BENCH, "--json", "--jobs", "1", "--data", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    missing = f"{tmp_path}/agentic_claude_code.csv.gz is not there"
    assert done.stderr == f"error: {missing}; accepted: a folder with that recording, by --data\n"


def test_programs_hold_three_times_the_memory() -> None:
    known = [
        [TraceRequest(f"{turn}", 0.0, 100, 9, session="s", think_s=1.0) for turn in range(4)]
        for _ in range(20)
    ]
    requests = drawn(known, kv_tokens=200, seed=1)
    sessions = {request.session for request in requests}
    assert len(sessions) == 6
    assert len(requests) == len({request.id for request in requests}) == 24
    times = [request.arrival_s for request in requests]
    assert times == sorted(times)
    assert max(request.arrival_s for request in requests if request.id.endswith("-0")) <= 120


def test_the_gain_is_stocks_mean_over_the_contenders() -> None:
    stock = replace(summarize([]), programs=2, mean_program_s=9.0, p99_program_s=12.0, prefix_hit_rate=0.5)
    figures = cell([replace(stock, mean_program_s=6.0)], [stock])
    assert (figures["gain"], figures["programs"], figures["prefix_hit_rate"]) == (1.5, 2, 0.5)
    assert AgentRun("vllm", 0.0, 1).contender == "vllm"
    assert AgentRun("vllm", 200.0, 1).contender == "vllm, 200 GiB on the host"


def test_a_block_of_the_demos_programs_is_named_by_the_last_of_those_it_stands_for() -> None:
    turn = TraceRequest("0", 128.0, 70 * 512, 64, think_s=32.0, prefix_blocks=tuple(range(70)))
    small = shrunk(turn)
    assert (small.arrival_s, small.think_s, small.input_tokens, small.output_tokens) == (2.0, 0.5, 1120, 2)
    assert small.prefix_blocks == (31, 63)


def test_a_picture_has_every_contender() -> None:
    svg = picture({name: {"mean_program_s": 2.0, "p99_program_s": 3.0} for name in ("vllm", "headway")})
    assert svg.startswith("<svg")
    assert all(f">{name}<" in svg for name in ("vllm", "headway", "mean", "p99"))
