from __future__ import annotations

from pathlib import Path

import pytest
from headway_reproduce.magnus.data import LONGEST_OUTPUT, DataSource, load_tasks
from headway_reproduce.magnus.real import MEASUREMENT, POLICIES, REAL_SHOWN, real_rows, serve_policies, taught
from headway_reproduce.real_study import RealResult, RealRuns, real_part

from headway.lab.papers import PaperRequest
from headway.results import summarize
from tests.results.examples import make

RUNS = RealRuns(
    hardware="2 x abacus",
    requests=1,
    results=tuple(
        RealResult(policy=policy, summaries=(summarize([make(finished_s=end_s)]),))
        for policy, end_s in zip(POLICIES, (8.0, 4.0, 2.0), strict=True)
    ),
)


def silent(line: str) -> None:
    """A progress line that goes nowhere."""


# ---- what is served ------------------------------------------------------------------------------------


def test_nothing_that_is_served_was_trained_on() -> None:
    training, requests = real_rows(5)
    # Two tasks may share a line; what is asked of it, and so the answer, differs.
    inputs = {(row.task, row.user_input) for row in training}
    rows = [row for task in load_tasks(DataSource()) for row in task.workload[:5]]
    assert len(requests) == len(rows) == 5 * 8
    assert not inputs & {(row.task, row.user_input) for row in rows}
    assert {request.arrival_s for request in requests} == {0.0}
    assert {request.max_output_tokens for request in requests} == {LONGEST_OUTPUT}
    prompts = {request.prompt for request in requests}
    assert all(any(row.user_input in (prompt or "") for prompt in prompts) for row in rows)


def test_the_predictor_is_taught_what_the_dispatcher_would_see() -> None:
    training, _ = real_rows(1)
    some = training[:40]
    pairs = list(taught(some))
    assert [tokens for _, tokens in pairs] == [row.output_tokens for row in some]
    last, row = pairs[-1][0], some[-1]
    # By the fortieth prompt of a task the beginning that all share is known as the instruction.
    assert row.instruction in last.instruction
    assert last.user_input.strip() in f"{row.user_input}<|eos|><|assistant|>"
    assert last.num_prompt_tokens == row.prompt_tokens


# ---- what is kept --------------------------------------------------------------------------------------


def test_without_what_it_needs_it_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = PaperRequest(root=tmp_path, jobs=1)
    monkeypatch.setattr("headway_reproduce.real_study.find_spec", lambda name: object())
    assert MEASUREMENT.more_seconds(request) == MEASUREMENT.seconds
    monkeypatch.setattr("headway_reproduce.real_study.find_spec", lambda name: None)
    assert MEASUREMENT.more_seconds(request) == 0.0
    assert MEASUREMENT.found(request, silent) is None


def test_policies_are_put_beside_vs() -> None:
    [table] = real_part(RUNS, REAL_SHOWN).tables
    assert "the demo, which was trained" in table.title
    # 8, 4 and 2 s for a request; throughput the other way round.
    assert [row[0] for row in table.rows] == list(POLICIES)
    assert [row[2] for row in table.rows] == pytest.approx([1.0, 2.0, 4.0])
    assert [row[4] for row in table.rows] == pytest.approx([1.0, 0.5, 0.25])


# ---- a real server -------------------------------------------------------------------------------------


@pytest.mark.engine
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_real_server_serves_everybodys_batches(tmp_path: Path) -> None:
    from headway_reproduce.magnus.real import SERVER_FLAGS

    from headway.engine.servers.server_command import server_command
    from headway.engine.servers.server_process import ServerProcess
    from headway.engine.settings import EngineSettings
    from headway.lab.server import START_TIMEOUT_S, free_port

    training, requests = real_rows(2)
    address = ("127.0.0.1", free_port())
    command = server_command("demo", EngineSettings(policy="vllm"), address, SERVER_FLAGS)
    log = tmp_path / "server.log"
    with log.open("wb") as output, ServerProcess(command.arguments, address, log=output) as server:
        server.wait_ready(START_TIMEOUT_S)
        results = serve_policies(server.url, training[::4], requests, silent, rounds=1)
    assert [found.policy for found in results] == list(POLICIES)
    assert {found.summaries[0].finished for found in results} == {len(requests)}
