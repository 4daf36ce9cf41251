"""The process behind an instance that the gateway launched, and how long to wait before launching it again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol


class LaunchedServer(Protocol):
    """A server that the gateway started and ends; `headway.engine.servers.server_process.ServerProcess` is one."""

    @property
    def url(self) -> str:
        """Base URL of the server."""
        ...

    @property
    def pid(self) -> int:
        """Process id of the server."""
        ...

    def poll(self) -> int | None:
        """Exit code if it has ended (negative: the signal that ended it), without waiting."""
        ...

    def last_words(self) -> str:
        """Why it ended, as far as it said so itself; empty if it said nothing. May block for a moment."""
        ...

    def ask_to_stop(self) -> None:
        """Have it end by itself, and by force after its grace period."""
        ...

    def kill(self) -> None:
        """End every process of it at once."""
        ...

    def wait(self, timeout_s: float | None = None) -> int:
        """Exit code once it and its children have ended. Blocks."""
        ...


@dataclass(slots=True)
class Backoff:
    """Seconds to wait before the next launch: doubled each time, up to a limit, and from the start again after rest.

    `rest_s` is how long a server must have served for its next end to count as the first.
    """

    first_s: float = 1.0
    longest_s: float = 60.0
    rest_s: float = 60.0
    ends: int = 0

    def ended(self, served_s: float) -> float:
        """Seconds to wait, now that a server which had served for `served_s` has ended."""
        if served_s >= self.rest_s:
            self.ends = 0
        wait_s = min(self.longest_s, self.first_s * 2.0 ** min(self.ends, 60))
        self.ends += 1
        return wait_s


async def stop_process(process: LaunchedServer) -> int:
    """Exit code of a server that was asked to stop, once all of its processes have ended."""
    if process.poll() is None:
        await asyncio.to_thread(process.ask_to_stop)
    return await asyncio.to_thread(process.wait)


async def kill_process(process: LaunchedServer) -> int:
    """Exit code of a server that was killed with all of its processes."""
    process.kill()
    return await asyncio.to_thread(process.wait)


def how_it_ended(code: int, last_words: str = "") -> str:
    """For people: how a process ended, and what it said of it."""
    ended = f"ended by signal {-code}" if code < 0 else f"ended with code {code}"
    return f"{ended}: {last_words}" if last_words else ended
