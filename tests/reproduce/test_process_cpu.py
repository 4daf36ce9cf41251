"""What processes take of the cores: by a made-up /proc, and by this machine's own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from headway_reproduce.process_cpu import cpu_s, family


def process(proc: Path, pid: int, parent: int, *, seconds: float = 0.0, name: str = "it") -> None:
    """A process with one thread, which waited a quarter as long as it ran."""
    folder = proc / str(pid)
    (folder / "task" / str(pid)).mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} ({name}) S {parent} 1 1 0 -1 0 0 0 0 0 5 5 7 7 20 0 1\n")
    ran_ns = int(seconds * 1e9)
    (folder / "task" / str(pid) / "schedstat").write_text(f"{ran_ns} {ran_ns // 4} 12\n")


def test_a_family_is_the_process_and_all_that_came_of_it(tmp_path: Path) -> None:
    for pid, parent in ((1, 0), (10, 1), (12, 10), (11, 10), (20, 12), (30, 1)):
        process(tmp_path, pid, parent, name="a) b (c")
    (tmp_path / "meminfo").write_text("no process")
    assert family(10, tmp_path) == [10, 11, 12, 20]


def test_time_is_of_the_whole_family(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, seconds=2.0)
    process(tmp_path, 11, 10, seconds=4.0)
    process(tmp_path, 99, 1, seconds=8.0)
    assert cpu_s(10, tmp_path) == pytest.approx(6.0)


def test_what_has_ended_counts_as_nothing(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, seconds=2.0)
    process(tmp_path, 11, 10, seconds=4.0)
    (tmp_path / "11" / "task" / "11" / "schedstat").unlink()  # its thread went while it was read
    assert cpu_s(10, tmp_path) == 2.0
    assert cpu_s(12, tmp_path) == 0.0


def test_this_process_and_a_child_of_it() -> None:
    before_s = cpu_s(os.getpid())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in family(os.getpid())
        began_s = time.thread_time()
        while time.thread_time() < began_s + 0.05:
            pass
        assert cpu_s(os.getpid()) - before_s >= 0.04
        child.communicate(b"\n")
