"""One instance behind the gateway: its address, its condition, and its load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from headway.gateway.fleet.health import NO_FACTS, Facts

LAST_CODE = 255
"""The largest exit code of a process. A larger value means that the code was not seen."""


class LaunchedServer(Protocol):
    """A server that a gateway starts and ends; `headway.engine.servers.server_process.Server` is one."""

    @property
    def url(self) -> str:
        """Base URL of the server."""

    @property
    def pid(self) -> int:
        """Process id of the server."""

    def poll(self) -> int | None:
        """Exit code if it has ended (negative: the signal that ended it), without waiting."""

    def last_words(self) -> str:
        """Why the server ended, by its own output; empty if unknown. May block for a moment."""

    def ask_to_stop(self) -> None:
        """Ask the server to end by itself; after its grace period it is killed."""

    def let_go(self) -> bool:
        """Stop using the server; return whether no other gateway uses it, so that it is to be ended.

        May block for a moment, and raise OSError or HeadwayError.
        """

    def kill(self) -> None:
        """Kill all processes of the server."""

    def wait(self, timeout_s: float | None = None) -> int:
        """Exit code once the server and its children have ended. Blocks."""


class Condition(StrEnum):
    """The condition of an instance. Only READY gets new requests."""

    STARTING = "starting"
    """The instance has not answered yet."""
    READY = "ready"
    """The instance answers."""
    UNWELL = "unwell"
    """The instance missed a health check, or answered garbage: it gets nothing new, and its running requests
    continue.
    """
    DRAINING = "draining"
    """The instance finishes its requests."""
    LOST = "lost"
    """The instance is gone or frozen: its requests are cut off."""
    PARKED = "parked"
    """Fewer are needed: the instance has no process, or is left to other gateways. It is launched when needed."""
    STOPPED = "stopped"
    """The instance was ended, and is not started again."""


@dataclass(slots=True, eq=False)
class Member:
    """An instance as the gateway knows it.

    `launch` starts its process; None for one that was joined by its URL. `since_s` is when its condition began and
    `reason` why; `last_loss` is why it was last lost, whatever was tried since. The serving path counts `in_flight`
    (sequences of its current requests), `served` (requests answered) and its `streams` that have begun, and notes in
    `heard` when one last sent something. The fleet counts `failures` (losses and garbage answers) and `restarts`.
    """

    name: str
    pool: str = ""
    url: str = ""
    launch: Launch | None = None
    condition: Condition = Condition.STARTING
    since_s: float = 0.0
    reason: str = ""
    last_loss: str = ""
    in_flight: int = 0
    served: int = 0
    streams: int = 0
    heard_s: float = 0.0
    failures: int = 0
    restarts: int = 0
    process: LaunchedServer | None = None
    answer_limit: int | None = None
    """Tokens that its model allows an answer if a request sets no limit; None: unknown."""
    facts: Facts = NO_FACTS
    last_facts: Facts = NO_FACTS
    """What it said about itself before it was lost."""
    loss: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is lost; replaced for its next life."""

    @property
    def ended(self) -> bool:
        """Whether it has a process that has ended."""
        return self.process is not None and self.process.poll() is not None


Launch = Callable[[Member], LaunchedServer]
"""Starts a member's server (by name and pool). May block for a moment, and raise OSError or HeadwayError."""
