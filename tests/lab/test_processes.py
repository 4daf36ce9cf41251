"""Worker processes of a study, killed for real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headway.lab.processes import in_processes

SCRIPT = """
import sys
from tests.lab.test_processes import say_and_wait
from headway.lab.processes import in_processes

if __name__ == "__main__":
    list(in_processes(say_and_wait, sys.argv[1:], jobs=2))
"""

SLOW_START = """
import os
import sys
import time
from pathlib import Path
from tests.lab.test_processes import halved
from headway.lab.processes import in_processes

begun, interrupted = map(Path, sys.argv[1:])
if __name__ == "__main__":
    print(list(in_processes(halved, [8], jobs=1)))
else:  # a worker, which imports this before it does anything
    begun.write_text(str(os.getpid()))
    while not interrupted.exists():
        time.sleep(0.01)
"""


def say_and_wait(path: str) -> None:
    """Leave the process's number in a file, and take long."""
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)


def process_number(_: int) -> int:
    return os.getpid()


def number_in(path: Path) -> int:
    """The number that a worker wrote; waits for it."""
    for _ in range(600):
        if path.exists() and path.read_text():
            return int(path.read_text())
        time.sleep(0.1)
    pytest.fail(f"no worker has begun {path}")


def has_ended(pid: int) -> bool:
    """Whether a process is gone within a minute; what nobody waited for counts as gone."""
    stat = Path(f"/proc/{pid}/stat")
    for _ in range(600):
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path, sent: signal.Signals) -> None:
    marks = [tmp_path / "one", tmp_path / "two"]
    script = tmp_path / "study.py"
    script.write_text(SCRIPT)
    root = str(Path(__file__).parents[2])
    parent = subprocess.Popen(
        [sys.executable, str(script), *map(str, marks)], cwd=root, env={**os.environ, "PYTHONPATH": root}
    )
    try:
        workers = [number_in(mark) for mark in marks]
        parent.send_signal(sent)
        assert parent.wait(timeout=60) == -sent
        assert all(has_ended(pid) for pid in workers)
    finally:
        parent.kill()


def test_a_worker_that_is_still_starting_leaves_an_interrupt_to_its_parent(tmp_path: Path) -> None:
    begun, interrupted, script = tmp_path / "begun", tmp_path / "interrupted", tmp_path / "study.py"
    script.write_text(SLOW_START)
    root = str(Path(__file__).parents[2])
    parent = subprocess.Popen(
        [sys.executable, str(script), str(begun), str(interrupted)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        os.kill(number_in(begun), signal.SIGINT)
        interrupted.touch()
        assert parent.communicate(timeout=60) == ("[4]\n", "")
    finally:
        parent.kill()


def test_each_item_is_worked_on_in_another_process() -> None:
    found = list(in_processes(process_number, range(3), jobs=2))
    assert len(found) == 3
    assert os.getpid() not in found


def halved(number: int) -> int:
    return number // 2


def whole_half(half: int) -> int | None:
    return half if half % 2 == 0 and half else None


def test_what_follows_from_what_was_done_is_next() -> None:
    # 8 becomes 4, 2 and 1, and only then 5 becomes 2 and 1.
    assert list(in_processes(halved, [8, 5, 3], jobs=1, then=whole_half)) == [4, 2, 1, 2, 1, 1]
