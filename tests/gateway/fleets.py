"""Fleets of small servers, each a process of its own."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headway.engine.servers.server_process import ServerProcess
from headway.gateway.fleet.fleet import Fleet
from headway.gateway.fleet.member import Member
from headway.gateway.fleet.supervisor import FleetOptions
from headway.http_client import open_session

SCRIPT = Path(__file__).with_name("small_server.py")

QUICK = FleetOptions(interval_s=0.05, misses=2, backoff_s=0.05, longest_backoff_s=0.2, garbage_pause_s=0.3)
HASTY = replace(QUICK, timeout_s=0.5)
"""For those that freeze: elsewhere a busy machine must not look like one."""
LONGEST_WAIT_S = 120.0


def free_port() -> int:
    """A port that nobody had a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class SmallServer:
    """One small server's port and ways, through all of its lives."""

    folder: Path
    name: str
    port: int = field(default_factory=free_port)
    launches: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.behave()

    @property
    def state_file(self) -> Path:
        return self.folder / f"{self.name}.json"

    def behave(self, **ways: Any) -> None:
        """Set its behaviour from the next request (or launch) on; written as one file, so that the server never
        reads half of it.
        """
        new = self.state_file.with_suffix(".new")
        new.write_text(json.dumps(ways))
        new.replace(self.state_file)

    def launch(self, member: Member) -> ServerProcess:
        self.launches.append((member.name, member.pool))
        return ServerProcess(
            ["--port", str(self.port)],
            ("127.0.0.1", self.port),
            environment={"SMALL_STATE": str(self.state_file)},
            log=subprocess.DEVNULL,
            label=member.name,
            grace_s=10.0,
            program=(sys.executable, str(SCRIPT)),
        )

    def launched(self, pool: str = "") -> Member:
        """A member that the fleet launches."""
        return Member(self.name, pool, launch=self.launch)

    def joined(self) -> Member:
        """A member that is there or not, as the test pleases."""
        return Member(self.name, url=f"http://127.0.0.1:{self.port}")


@asynccontextmanager
async def running(*members: Member, options: FleetOptions = QUICK) -> AsyncIterator[Fleet]:
    """A fleet at work; nothing of it is left afterwards."""
    async with open_session() as session:
        fleet = Fleet(members, session=session, options=options)
        task = asyncio.create_task(fleet.run())
        try:
            yield fleet
        finally:
            await fleet.close(at_once=True)
            task.cancel()
            await asyncio.wait([task])


async def until(condition: Callable[[], object]) -> None:
    """Return once it holds. What never does is an error here: the limit of a whole test would leave sockets open."""
    async with asyncio.timeout(LONGEST_WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)
