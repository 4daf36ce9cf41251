"""One instance behind the gateway: where it is, how it is, and what it is busy with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from headway.gateway.fleet.health import NO_FACTS, Facts

LAST_CODE = 255
"""The last that a process can end with. A greater one says that the server ended where its code was not seen."""


class LaunchedServer(Protocol):
    """A server that a gateway started and ends; `headway.engine.servers.server_process.Server` is one."""

    @property
    def url(self) -> str:
        """Base URL of the server."""

    @property
    def pid(self) -> int:
        """Process id of the server."""

    def poll(self) -> int | None:
        """Exit code if it has ended (negative: the signal that ended it), without waiting."""

    def last_words(self) -> str:
        """Why it ended, as far as it said so itself; empty if it said nothing. May block for a moment."""

    def ask_to_stop(self) -> None:
        """Have it end by itself, and by force after its grace period."""

    def let_go(self) -> bool:
        """Do without the server; whether no other gateway needs it either, so that it is to be ended.

        May block for a moment, and raise OSError or HeadwayError.
        """

    def kill(self) -> None:
        """End every process of it at once."""

    def wait(self, timeout_s: float | None = None) -> int:
        """Exit code once it and its children have ended. Blocks."""


class Condition(StrEnum):
    """How an instance is. READY alone gets new requests."""

    STARTING = "starting"
    """The instance has not answered yet."""
    READY = "ready"
    """The instance answers."""
    UNWELL = "unwell"
    """The instance missed a health check, or answered garbage: nothing new goes there, what runs there goes on."""
    DRAINING = "draining"
    """The instance finishes what it has."""
    LOST = "lost"
    """The instance is gone or frozen: the requests there are cut off."""
    PARKED = "parked"
    """Fewer are needed: the instance has no process, or is left to other gateways. It is launched when more are."""
    STOPPED = "stopped"
    """The instance was ended, and is not started again."""


@dataclass(slots=True, eq=False)
class Member:
    """An instance as the gateway knows it.

    `launch` starts its process; None for one that was joined by its URL. `since_s` is when its condition began and
    `reason` why, for people; `last_loss` is why it was last lost, whatever has been tried since. `in_flight` and
    `served` (sequences of the requests there now; requests it answered) are counted by the serving path, which also
    counts its `streams` that have begun and notes when it `heard` of one last. `failures` (lost, or garbage answered)
    and `restarts` are counted by the fleet.
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
    """Tokens that its model lets an answer have where a request sets no limit; None: not known."""
    facts: Facts = NO_FACTS
    last_facts: Facts = NO_FACTS
    """What it said before it was lost, if it is."""
    loss: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is lost; another one for its next life."""

    @property
    def ended(self) -> bool:
        """Whether it has a process, and that has ended."""
        return self.process is not None and self.process.poll() is not None


Launch = Callable[[Member], LaunchedServer]
"""Starts the server of a member (of its name and pool); may block for a moment, and raise OSError or HeadwayError."""
