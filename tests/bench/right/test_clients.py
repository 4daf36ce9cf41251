"""What `bench/right/clients.py` makes of what its clients say; the clients themselves are not run here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.right.clients import (
    CHOICES,
    CLASSES,
    DOCUMENTS,
    TASK,
    all_completed,
    compared,
    exit_code,
    figures,
    instance_url,
    lm_eval_command,
    result,
    tried,
    write_task,
)
from bench.right.clients import vllm_bench_command as bench_command
from headway.errors import UpstreamError


def bench_result(completed: int = 60, failed: int = 0, goodput_rps: float = 4.5) -> dict[str, Any]:
    """As `vllm bench serve --save-result` writes it, in the keys that are read."""
    return {
        "duration": 10.0,
        "completed": completed,
        "failed": failed,
        "request_goodput": goodput_rps,
        "median_ttft_ms": 20.0,
        "p99_ttft_ms": 80.0,
        "median_tpot_ms": 3.0,
    }


def test_goodput_is_a_share_of_all_requests() -> None:
    # 4.5 a second for 10 s were in time, of 60.
    found = figures("urgent", bench_result())
    assert found["goodput"] == pytest.approx(45 / 60)
    assert (found["requests"], found["completed"]) == (60, 60)


def test_classes_pass_if_every_request_was_answered() -> None:
    whole = {
        "urgent": figures("urgent", bench_result()),
        "patient": figures("patient", bench_result(completed=30)),
    }
    assert all_completed(whole)
    assert not all_completed({**whole, "patient": figures("patient", bench_result(completed=29, failed=1))})


def test_a_class_tells_the_targets_that_it_judges_by() -> None:
    words = bench_command("urgent", "http://g", "demo", "/model", Path("/out"))
    kind = CLASSES["urgent"]
    header, goodput = words.index("--header") + 1, words.index("--goodput") + 1
    assert words[goodput : goodput + 2] == [f"ttft:{kind.ttft_ms}", f"tpot:{kind.tpot_ms}"]
    assert words[header : header + 2] == [f"x-slo-ttft-ms={kind.ttft_ms}", f"x-slo-tpot-ms={kind.tpot_ms}"]
    assert len({kind.priority for kind in CLASSES.values()}) == len(CLASSES)


# ---- lm-eval -------------------------------------------------------------------------------------------


def test_the_task_is_the_same_every_time_and_has_one_right_answer(tmp_path: Path) -> None:
    write_task(tmp_path)
    data = tmp_path / "documents.jsonl"
    first = data.read_text()
    write_task(tmp_path)
    assert data.read_text() == first
    rows = [json.loads(line) for line in first.splitlines()]
    assert len(rows) == DOCUMENTS
    for row in rows:
        inside = [choice.strip() in row["question"].split() for choice in row["choices"]]
        assert inside.index(True) == row["answer"]
        assert (sum(inside), len(inside)) == (1, CHOICES)
    assert f"test: {data}\n" in (tmp_path / f"{TASK}.yaml").read_text()


def test_lm_eval_asks_the_server_it_is_given(tmp_path: Path) -> None:
    words = lm_eval_command(Path("/lm_eval"), "http://g", "demo", "/model", tmp_path, tmp_path / "out")
    assert words[:3] == ["/lm_eval", "--model", "local-completions"]
    assert "base_url=http://g/v1/completions" in words[4].split(",")


def written(folder: Path, logprobs: list[list[float]], accuracy: float) -> Path:
    """Results as lm-eval 0.4.13 leaves them, samples in no order."""
    out = folder / "demo"
    out.mkdir(parents=True)
    scores = {"alias": TASK, "acc,none": accuracy}
    (out / "results_2026.json").write_text(json.dumps({"results": {TASK: scores}}))
    samples = [
        {"doc_id": number, "resps": [[[str(logprob), "False"]] for logprob in each]}
        for number, each in enumerate(logprobs)
    ]
    lines = "".join(json.dumps(sample) + "\n" for sample in reversed(samples))
    (out / f"samples_{TASK}_2026.jsonl").write_text(lines)
    return folder


def test_results_are_read_where_lm_eval_leaves_them(tmp_path: Path) -> None:
    found = result(written(tmp_path, [[-1.5, -2.0], [-3.0, -0.25]], 0.5))
    assert found == {"scores": {"acc,none": 0.5}, "logprobs": [[-1.5, -2.0], [-3.0, -0.25]]}


def test_two_results_in_one_folder_are_no_result(tmp_path: Path) -> None:
    written(tmp_path / "a", [[-1.0]], 1.0)
    written(tmp_path / "b", [[-1.0]], 1.0)
    with pytest.raises(RuntimeError, match="has 2 files"):
        result(tmp_path)


def test_sides_are_compared_in_scores_and_in_what_is_behind_them(tmp_path: Path) -> None:
    ours = result(written(tmp_path / "a", [[-1.5, -2.0]], 0.5))
    direct = result(written(tmp_path / "b", [[-1.5, -2.25]], 0.5))
    found = compared(ours, direct)
    assert found["same_scores"]
    assert found["largest_logprob_difference"] == pytest.approx(0.25)
    assert found["documents"] == 1
    assert not compared(ours, result(written(tmp_path / "c", [[-1.5, -2.0]], 0.0)))["same_scores"]


# ---- all of them ---------------------------------------------------------------------------------------


def test_a_client_that_breaks_off_is_one_that_did_not_pass() -> None:
    def broken() -> dict[str, Any]:
        raise RuntimeError("code 1: no tokenizer")

    assert tried("lm-eval", broken) == {"passed": False, "error": "code 1: no tokenizer"}
    assert tried("openai", lambda: {"passed": True, "of": 3}) == {"passed": True, "of": 3}


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ({"openai": {"passed": True}, "lm_eval": None}, 0),
        ({"openai": {"passed": True}, "lm_eval": {"passed": False}}, 1),
        ({"openai": None}, 0),
    ],
)
def test_who_is_not_installed_fails_nothing(found: dict[str, dict[str, Any] | None], code: int) -> None:
    assert exit_code(found) == code


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A gateway (10) with a server of its own (12) beside another process (11)."""
    lines = {
        10: "headway serve",
        11: "python -m other --port 1",
        12: "python -m headway.engine.servers.launcher serve --port 8123",
    }
    for pid, line in lines.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_text(line.replace(" ", "\0") + "\0")
        parent = 1 if pid == 10 else 10
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (python) S {parent} 0 0 0 0 0 0 0 0 0 0 0 0")
    monkeypatch.setattr("bench.right.clients.PROC", tmp_path)
    return tmp_path


def test_an_instance_is_found_by_its_command_line(proc: Path) -> None:
    assert instance_url(10) == "http://127.0.0.1:8123"
    with pytest.raises(UpstreamError, match="no server"):
        instance_url(12)
