"""CPU use of this machine's processes, from Linux's /proc."""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")
_PARENT = 1
"""Index of the parent among the fields of `stat` that follow the process's name."""


def cpu_s(pid: int, proc: Path = PROC) -> float:
    """Seconds that the living threads of a process and its living descendants have run, to the nanosecond.

    A process or thread that ended while it was read counts as nothing. Cost: O(processes of the machine).
    """
    ran_ns = 0
    for each in family(pid, proc):
        try:
            threads = os.listdir(proc / str(each) / "task")
        except (FileNotFoundError, ProcessLookupError):
            continue
        for thread in threads:
            try:
                stat = (proc / str(each) / "task" / thread / "schedstat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            ran_ns += int(stat.split()[0])
    return ran_ns / 1e9


def family(pid: int, proc: Path = PROC) -> list[int]:
    """A process and its descendants, ancestors first."""
    children: dict[int, list[int]] = {}
    for entry in proc.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            stat = (entry / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        # The name is in brackets and may itself contain spaces and brackets.
        parent = int(stat.rpartition(")")[2].split()[_PARENT])
        children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for each in found:
        found += sorted(children.get(each, ()))
    return found
