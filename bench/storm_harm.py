"""What a storm does to instances: it kills them, freezes them for a while, and has them answer garbage."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import cycle
from pathlib import Path

KILL, FREEZE, GARBAGE = "kills", "freezes", "garbage"


def instances_of(gateway_pid: int) -> list[int]:
    """The processes that a gateway has launched, by the ports they serve on (in the order of their launch before)."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if folder.name.isdecimal() and f"PPid:\t{gateway_pid}\n" in (folder / "status").read_text():
                words = (folder / "cmdline").read_text().split("\0")
                found.append((int(words[words.index("--port") + 1]), int(folder.name)))
    return [pid for _, pid in sorted(found)]


async def kill(pid: int) -> None:
    """Its process alone: what it started is for the gateway to end."""
    os.kill(pid, signal.SIGKILL)


async def freeze(pid: int, freeze_s: float) -> None:
    """All of its processes, for a while."""
    try:
        os.killpg(pid, signal.SIGSTOP)
        await asyncio.sleep(freeze_s)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGCONT)


async def garbage(pid: int) -> None:
    """A small instance of the storm's own answers garbage for a while."""
    os.kill(pid, signal.SIGUSR1)


async def harm_all(
    gateway_pid: int,
    kinds: Sequence[str],
    rng: random.Random,
    every_s: float,
    freeze_s: float,
    done: Counter[str],
) -> None:
    """One harm after the other, in turn, each to an instance drawn by lot, until cancelled; counted in `done`.

    Between two lie `every_s`, more or less by half.
    """
    ways: dict[str, Callable[[int], Awaitable[None]]] = {
        KILL: kill,
        FREEZE: lambda pid: freeze(pid, freeze_s),
        GARBAGE: garbage,
    }
    async with asyncio.TaskGroup() as group:
        for kind in cycle(kinds):
            await asyncio.sleep(every_s * rng.uniform(0.5, 1.5))
            if pids := instances_of(gateway_pid):
                group.create_task(_harm(ways[kind], rng.choice(pids)))
                done[kind] += 1


async def _harm(way: Callable[[int], Awaitable[None]], pid: int) -> None:
    with suppress(ProcessLookupError):  # it has ended meanwhile
        await way(pid)
