from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.cli.output import (
    _counted_tenths,
    check_engine_files,
    check_file,
    check_replaceable,
    counting,
    kept_or_temporary,
    written_command,
)
from headway.engine.settings import EngineSettings
from headway.errors import ConfigError

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


def test_what_goes_on_for_long_tells_a_log_of_each_tenth_and_of_the_time_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now_s = 0.0
    tick = _counted_tenths("requests ended", 200, lambda: now_s)
    for _ in range(200):
        now_s += 0.15
        tick(1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "requests ended: 20 of 200, about 27 s left"
    assert lines[-1] == "requests ended: 200 of 200, about 0 s left"
    assert len(lines) == 10


def test_what_is_soon_over_tells_a_log_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with counting("requests", 5) as tick:
        tick(5)
    assert capsys.readouterr().err == ""


CHECKS = [check_file, check_replaceable]


@pytest.mark.parametrize("check", CHECKS)
def test_a_file_that_is_there_stays_and_a_new_one_is_not_made(
    tmp_path: Path, check: Callable[[str, Path], None]
) -> None:
    old, new = tmp_path / "old", tmp_path / "deep" / "new"
    old.write_text("precious")
    check("--out", old)
    check("--out", new)
    assert old.read_text() == "precious"
    assert sorted(tmp_path.iterdir()) == [new.parent, old]
    assert list(new.parent.iterdir()) == []


@pytest.mark.parametrize("check", CHECKS)
def test_a_folder_where_nothing_can_be_made_is_refused(check: Callable[[str, Path], None]) -> None:
    with pytest.raises(ConfigError, match=r"^--out /proc/none/x cannot be written \(.+\); accepted: "):
        check("--out", Path("/proc/none/x"))


def test_a_link_into_nowhere_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "none" / "file")
    with pytest.raises(ConfigError, match="No such file or directory"):
        check_file("--out", link)


@pytest.mark.parametrize("check", CHECKS)
def test_a_folder_is_no_file(tmp_path: Path, check: Callable[[str, Path], None]) -> None:
    with pytest.raises(ConfigError, match="Is a directory"):
        check("--out", tmp_path)


@pytest.mark.parametrize("check", CHECKS)
def test_nobody_need_read_a_pipe_yet(tmp_path: Path, check: Callable[[str, Path], None]) -> None:
    os.mkfifo(tmp_path / "pipe")
    check("--out", tmp_path / "pipe")


def test_an_engine_that_writes_nothing_is_asked_for_nothing() -> None:
    check_engine_files(EngineSettings())


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("bench --model demo -- --max-num-seqs 8", "headway bench --model demo -- --max-num-seqs 8"),
        ("simulate --jobs 2 --out dir --json", "headway simulate --json"),
        ("simulate --jobs 4 --trace t --out=x --seeds 2 --out y", "headway simulate --trace t --seeds 2"),
        ("simulate --jobs=2 --model demo --out=dir", "headway simulate --model demo"),
        (
            "bench -- --api-key one two --seed 1 --hf-token=x",
            "headway bench -- --api-key '***' '***' --seed 1 '--hf-token=***'",
        ),
        ("bench -- --api_key one --hf_token=x", "headway bench -- --api_key '***' '--hf-token=***'"),
    ],
)
def test_flags_that_change_nothing_are_left_out_and_secrets_hidden(given: str, written: str) -> None:
    assert written_command(["/bin/headway", *given.split()], without=("--jobs", "--out")) == written


def test_it_can_be_copied_into_a_shell() -> None:
    words = ["headway", "bench", "--trace", "my file.csv", "--policies", "a,b"]
    assert shlex.split(written_command(words)) == words
