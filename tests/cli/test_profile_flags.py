from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from headway.predict.steps.calibration import load_cost_file
from tests.cli.conftest import Refused
from tests.engine.demo_kv import KV_BYTES_PER_TOKEN


@pytest.fixture
def profile(refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Says why a profile is refused before an engine starts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return partial(refused, "profile")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--quick", "--seconds", "5"], "--quick and --seconds are given; accepted: one of them"),
        (["--seconds", "0"], "--seconds is 0.0; accepted: more than 0, up to 86400 (a day)"),
        (["--seconds", "inf"], "--seconds is inf; accepted: more than 0, up to 86400 (a day)"),
        (["--seconds", "1e300"], "--seconds is 1e+300; accepted: more than 0, up to 86400 (a day)"),
        (["--model", "./no-such-model"], "model './no-such-model' does not exist"),
        (["--", "--scheduler-cls", "x"], "--scheduler-cls cannot be used under Headway"),
        (["--", "stray"], "unexpected argument 'stray'"),
    ],
)
def test_what_is_not_accepted_is_said_in_a_line_and_nothing_is_written(
    profile: Refused, tmp_path: Path, words: list[str], complaint: str
) -> None:
    out = tmp_path / "cost.json"
    err = profile("--model", "demo", "--out", str(out), *words)
    last = err.splitlines()[-1]
    assert last.startswith("error: ")
    assert complaint in last
    assert "measuring" not in err
    assert not out.exists()


def test_a_file_is_not_replaced_unless_asked_to(profile: Refused, tmp_path: Path) -> None:
    out = tmp_path / "cost.json"
    out.write_text("mine")
    err = profile("--model", "demo", "--out", str(out))
    assert f"--out {out} exists; name a new file, or add --force to replace it" in err
    err = profile("--model", "./no-such-model", "--out", str(out), "--force")
    assert "does not exist" in err
    assert out.read_text() == "mine"


def test_a_place_that_cannot_be_written_is_refused_first(profile: Refused, tmp_path: Path) -> None:
    err = profile("--model", "demo", "--out", str(tmp_path))
    assert "is a directory; accepted: a file" in err
    (tmp_path / "file").write_text("")
    err = profile("--model", "demo", "--out", str(tmp_path / "file" / "cost.json"))
    assert "is not a folder that can be written to" in err


# ---- on the real engine ------------------------------------------------------------------------------

SIZES = ("--max-num-seqs", "8", "--max-num-batched-tokens", "256", "--max-model-len", "512")


def command(out: Path, *words: str) -> list[str]:
    return [
        *(sys.executable, "-m", "headway.cli", "profile", "--model", "demo", "--out", str(out)),
        *(*words, "--", *SIZES),
    ]


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_a_short_profile_of_the_demo_model_can_be_read_back(tmp_path: Path) -> None:
    out = tmp_path / "made" / "cost.json"
    done = subprocess.run(
        command(out, "--seconds", "3", "--json"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    printed = json.loads(done.stdout)
    cost = load_cost_file(out)
    assert printed["steps"] == cost.step.num_rows == len(cost.rows) > 50
    assert printed["kv_bytes_per_token"] == cost.kv_bytes_per_token == KV_BYTES_PER_TOKEN
    assert set(printed["errors"]) == {"prefill", "decode", "mixed"}
    widest = max(row.num_decodes for row in cost.rows)
    longest = max(row.num_tokens for row in cost.rows)
    assert (widest, longest) == (8, 256)
    calibration = cost.calibration()
    assert calibration.to_device.bytes_per_s > 1e6
    assert 0 < calibration.host_s < 0.1
    assert "median error" in done.stderr
    assert [path.name for path in out.parent.iterdir()] == ["cost.json"]


@pytest.mark.engine
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("until", "after_s", "written"),
    [("starting vLLM", 1.0, False), pytest.param("measuring steps", 20.0, True, marks=pytest.mark.long)],
)
def test_an_interruption_writes_a_whole_file_or_none(
    tmp_path: Path, until: str, after_s: float, written: bool
) -> None:
    out, log = tmp_path / "cost.json", tmp_path / "log"
    with log.open("wb") as said:
        process = subprocess.Popen(command(out, "--seconds", "200"), stdout=said, stderr=said)
    while until not in log.read_text():
        assert process.poll() is None, log.read_text()[-3000:]
        time.sleep(0.1)
    time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130, log.read_text()[-3000:]
    left = {path.name for path in tmp_path.iterdir()} - {"log"}
    if written:
        assert "interrupted, but enough was measured: wrote" in log.read_text()
        assert load_cost_file(out).step.num_rows > 20
        assert left == {"cost.json"}
    else:
        assert "interrupted, nothing written; still missing: everything" in log.read_text()
        assert left == set()
