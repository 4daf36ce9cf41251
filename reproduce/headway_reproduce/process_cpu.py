"""What processes of this machine take of its cores, from Linux's /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PARENT, _USER_TICKS, _SYSTEM_TICKS = 1, 11, 12
"""Places among the fields of `stat` that follow the process's name."""


@dataclass(frozen=True, slots=True)
class ThreadTime:
    """Seconds a thread ran, and seconds it was ready to run but another one had its core."""

    ran_s: float
    waited_s: float


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process and all its descendants have used so far; `threads` are those that live."""

    cpu_s: float
    threads: Mapping[int, ThreadTime]

    @property
    def threads_s(self) -> float:
        """As `cpu_s`, to the nanosecond, but without threads that have ended."""
        return sum(thread.ran_s for thread in self.threads.values())


@dataclass(frozen=True, slots=True)
class CpuShare:
    """What a process and its descendants used of one core in a stretch of time.

    `inflation` is how many times as long its busiest thread took for its work because it waited for a core that
    others had: (ran + waited) / ran, 1 where it never waited.
    """

    cores: float
    inflation: float


def usage(pid: int, proc: Path = PROC, *, alone: bool = False) -> Usage:
    """Of a process and its living descendants, or of the process `alone`.

    A process that ended while it was read counts as nothing. Cost: O(processes of the machine).
    """
    ticks, threads = 0, dict[int, ThreadTime]()
    for each in [pid] if alone else family(pid, proc):
        try:
            fields = _fields(proc / str(each) / "stat")
            ticks += int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
            threads |= _threads(proc / str(each) / "task")
        except (FileNotFoundError, ProcessLookupError):
            continue
    return Usage(ticks / _TICKS_A_SECOND, threads)


def family(pid: int, proc: Path = PROC) -> list[int]:
    """A process and its descendants, ancestors first."""
    children: dict[int, list[int]] = {}
    for entry in proc.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            parent = int(_fields(entry / "stat")[_PARENT])
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for each in found:
        found += sorted(children.get(each, ()))
    return found


def share(before: Usage, after: Usage, wall_s: float) -> CpuShare:
    """What was used between two readings that lie `wall_s` seconds (above 0) apart."""
    return CpuShare((after.cpu_s - before.cpu_s) / wall_s, _inflation(before.threads, after.threads))


def _inflation(before: Mapping[int, ThreadTime], after: Mapping[int, ThreadTime]) -> float:
    grown = (_grown(before.get(thread), time) for thread, time in after.items())
    busiest = max(grown, key=lambda time: time.ran_s, default=ThreadTime(0.0, 0.0))
    return 1.0 + busiest.waited_s / busiest.ran_s if busiest.ran_s else 1.0


def _grown(before: ThreadTime | None, after: ThreadTime) -> ThreadTime:
    if before is None:
        return after
    return ThreadTime(after.ran_s - before.ran_s, after.waited_s - before.waited_s)


def _fields(stat: Path) -> list[str]:
    """What follows the name, which is in brackets and may hold spaces and brackets itself."""
    return stat.read_text().rpartition(")")[2].split()


def _threads(folder: Path) -> dict[int, ThreadTime]:
    found = {}
    for name in _names(folder):
        try:
            ran_ns, waited_ns, _ = (folder / name / "schedstat").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found[int(name)] = ThreadTime(int(ran_ns) / 1e9, int(waited_ns) / 1e9)
    return found


def _names(folder: Path) -> Iterable[str]:
    return sorted(os.listdir(folder), key=int)
