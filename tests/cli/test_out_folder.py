from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headway.cli.out_folder import kept_or_temporary

LONG = "gen:poisson:rate=30/input=constant:tokens=500/output=constant:tokens=400/count=20000"
WORDS = ("--hardware", "h100", "--model", "Qwen/Qwen3-8B", "--trace", LONG)


def test_a_folder_that_is_named_stays_and_another_is_gone_afterwards(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with kept_or_temporary(tmp_path) as named:
        assert named == tmp_path
        assert signal.getsignal(signal.SIGTERM) != before
    with kept_or_temporary(None) as made:
        (made / "runs").touch()
    assert named.exists()
    assert not made.exists()
    assert signal.getsignal(signal.SIGTERM) == before


def is_begun(file: Path) -> bool:
    """Whether something is in it; not any more if it got its final name meanwhile."""
    try:
        return file.stat().st_size > 0
    except FileNotFoundError:
        return False


@pytest.mark.engine
@pytest.mark.parametrize(
    ("begun", "command"),
    [
        (".*.partial", ("simulate", "--policies", "vllm,sjf", "--jobs", "1")),
        (".*.partial", ("simulate", "--policies", "vllm,sjf", "--jobs", "2")),
        ("plan-runs.jsonl", ("plan", "--gpus", "1", "--jobs", "2", "--predictor", "none", "--limit", "600")),
    ],
)
def test_sigterm_leaves_no_folder_behind(tmp_path: Path, begun: str, command: tuple[str, ...]) -> None:
    running = subprocess.Popen(
        [sys.executable, "-m", "headway.cli", *command, *WORDS],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline_s = time.monotonic() + 60
    while not any(map(is_begun, tmp_path.glob(f"headway-*/{begun}"))) and time.monotonic() < deadline_s:
        assert running.poll() is None, running.communicate()
        time.sleep(0.02)
    running.terminate()
    stdout, stderr = running.communicate(timeout=60)
    assert (running.returncode, stdout) == (128 + signal.SIGTERM, "")
    assert "Traceback" not in stderr
    assert list(tmp_path.iterdir()) == []
