"""What processes take of the cores: by a made-up /proc, and by this machine's own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from headway_reproduce.process_cpu import CpuShare, ThreadTime, Usage, family, share, usage

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def process(proc: Path, pid: int, parent: int, *, seconds: float = 0.0, name: str = "it") -> None:
    """A process that ran half of its time in the kernel; its only thread waited a quarter as long as it ran."""
    half = int(seconds * TICKS_A_SECOND / 2)
    folder = proc / str(pid)
    (folder / "task" / str(pid)).mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} ({name}) S {parent} 1 1 0 -1 0 0 0 0 0 {half} {half} 7 7 20 0 1\n")
    ran_ns = int(seconds * 1e9)
    (folder / "task" / str(pid) / "schedstat").write_text(f"{ran_ns} {ran_ns // 4} 12\n")


def test_a_family_is_the_process_and_all_that_came_of_it(tmp_path: Path) -> None:
    for pid, parent in ((1, 0), (10, 1), (12, 10), (11, 10), (20, 12), (30, 1)):
        process(tmp_path, pid, parent)
    (tmp_path / "meminfo").write_text("no process")
    assert family(10, tmp_path) == [10, 11, 12, 20]


def test_a_name_may_hold_brackets_and_spaces(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, seconds=3.0, name="a) b (c")
    assert usage(10, tmp_path).cpu_s == pytest.approx(3.0)


def test_usage_is_of_the_whole_family(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, seconds=2.0)
    process(tmp_path, 11, 10, seconds=4.0)
    process(tmp_path, 99, 1, seconds=8.0)
    found = usage(10, tmp_path)
    assert found.cpu_s == pytest.approx(6.0)
    assert found.threads == {10: ThreadTime(2.0, 0.5), 11: ThreadTime(4.0, 1.0)}
    assert found.threads_s == pytest.approx(6.0)
    assert usage(10, tmp_path, alone=True).cpu_s == pytest.approx(2.0)


def test_a_process_that_has_ended_counts_as_nothing(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, seconds=2.0)
    process(tmp_path, 11, 10, seconds=4.0)
    (tmp_path / "11" / "task" / "11" / "schedstat").unlink()  # its thread went while it was read
    assert usage(10, tmp_path).threads == {10: ThreadTime(2.0, 0.5)}
    assert usage(12, tmp_path) == Usage(0.0, {})


def test_a_share_is_of_the_stretch_and_inflation_of_its_busiest_thread() -> None:
    # In 4 s: 1 + 2 s of CPU. Thread 2 ran 2 s of it, and waited 1 s for its core: 3 s for work of 2 s.
    before = Usage(10.0, {1: ThreadTime(5.0, 4.0), 2: ThreadTime(5.0, 3.0)})
    after = Usage(13.0, {1: ThreadTime(5.5, 9.0), 2: ThreadTime(7.0, 4.0), 3: ThreadTime(0.5, 0.0)})
    assert share(before, after, 4.0) == CpuShare(cores=0.75, inflation=1.5)
    assert share(after, after, 1.0) == CpuShare(cores=0.0, inflation=1.0)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="not a Linux with schedstat")
def test_a_process_that_works_is_seen_working() -> None:
    work = "import time\nend = time.process_time() + 0.25\nwhile time.process_time() < end: pass\ninput()"
    with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE) as child:
        deadline_s = time.monotonic() + 60
        while usage(child.pid).cpu_s < 0.2 and time.monotonic() < deadline_s:
            time.sleep(0.05)
        found = usage(child.pid)
        assert child.pid in family(os.getpid())
        child.communicate(b"\n")
    assert found.cpu_s >= 0.2
    assert found.threads[child.pid].ran_s == pytest.approx(found.cpu_s, abs=0.1)
