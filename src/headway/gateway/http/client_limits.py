"""Limits on what all clients together make the gateway hold: connections, and bytes of unanswered requests."""

from __future__ import annotations

import logging
import resource
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from headway.gateway.http.refusal import GatewayError

HELD = "headway.held"
"""Key in a request's scope for its `HeldRequest`."""

RESERVED_FILES = 64
"""Descriptors kept for logs, instances, health checks, and answers to refused connections; at most a quarter of all."""
MANY_FILES = 2**20
"""More files than a gateway ever opens; for systems without a limit."""
UNAUTHENTICATED_SHARE = 1 / 8
"""Share of the bytes for requests whose key has not been checked."""
COPIES = 2
"""A body is held twice: as received, and as sent to an instance."""
_LOG = logging.getLogger(__name__)
_LOG_AGAIN_S = 60.0
_RETRY_S = 1


def open_files_limit() -> int:
    """Number of files that this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MANY_FILES if soft == resource.RLIM_INFINITY else soft


def raise_file_limit() -> None:
    """Raise this process's limit of open files: a stream takes two, and the usual 1,024 are soon used up."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = MANY_FILES if most == resource.RLIM_INFINITY else min(most, MANY_FILES)
    if now < enough:
        with suppress(OSError, ValueError):  # some systems grant less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (enough, most))


class TurnedAway(StrEnum):
    """Why a connection or a request was turned away."""

    FULL = "full"
    """The connection is new, and the process can have no more."""
    DISPLACED = "displaced"
    """None of its requests had shown a key, and a newer connection needed its place or its bytes."""
    BYTES = "bytes"
    """There was no room for the request's bytes."""


class ClientConnection(Protocol):
    """The part of a connection that the limits use."""

    def turn_away(self, refusal: GatewayError) -> None:
        """End the connection, with this answer if one can still be sent."""


@dataclass(slots=True, eq=False)
class HeldRequest:
    """Bytes held for one request, of which `counted` were admitted.

    `tenant` is that of its key; None before the key was checked. `streamed`: the body goes to the disk as it arrives,
    so only what was counted before is held. `is_whole`: all of it has arrived. `on_gone` is called if the client leaves
    before it has the whole answer.
    """

    connection: ClientConnection
    size: int = 0
    counted: int = 0
    tenant: str | None = None
    released: bool = False
    streamed: bool = False
    is_whole: bool = False
    on_gone: Callable[[], None] | None = None


class ClientLimits:
    """Counts connections and bytes, and decides which must go if there are too many. O(1) a call, amortised.

    Bytes: an eighth of `max_bytes` is for requests whose key has not been checked. If a new one needs more, the oldest
    are turned away, since an honest head is complete within milliseconds. The rest is for all others. A tenant's key
    may take as many of these as are still free, so one tenant gets half, two get a third each (dynamic thresholds:
    Choudhury and Hahne, 1998).

    Connections: half of `max_files` descriptors, as each may need another one to an instance. A new connection beyond
    them replaces the oldest one that has shown no key yet, and is refused if all have.
    """

    def __init__(self, max_bytes: int, max_files: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_bytes = max_bytes
        self.max_unauthenticated_bytes = int(max_bytes * UNAUTHENTICATED_SHARE)
        self._last_file = max_files - min(RESERVED_FILES, max_files // 4)
        self.max_connections = self._last_file // 2
        self.turned_away: Counter[TurnedAway] = Counter()
        self._clock = clock
        self._told_s = float("-inf")
        self._authenticated: set[ClientConnection] = set()
        self._unauthenticated: dict[ClientConnection, None] = {}
        self._unchecked: dict[HeldRequest, None] = {}
        self._unchecked_bytes = 0
        self._checked_bytes = 0
        self._of_tenants: dict[str, int] = {}

    # ---- connections ------------------------------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._authenticated) + len(self._unauthenticated)

    def enter(self, connection: ClientConnection, file: int) -> bool:
        """Whether a new connection may stay; `file` is its descriptor, the lowest free one."""
        self._unauthenticated[connection] = None
        if self.connections <= self.max_connections and file < self._last_file:
            return True
        first = next(iter(self._unauthenticated))
        self._tell()
        if first is connection:
            self.leave(connection)
            self.turned_away[TurnedAway.FULL] += 1
            return False
        self._displace(first, self.full())
        return True

    def leave(self, connection: ClientConnection) -> None:
        """A connection ended. Later calls change nothing."""
        self._unauthenticated.pop(connection, None)
        self._authenticated.discard(connection)

    def full(self) -> GatewayError:
        """HTTP 503: too many connections."""
        message = f"{self.connections} connections are open; accepted: {self.max_connections}, half of the open files"
        return GatewayError(503, "too_many_connections", message, retry_after_s=_RETRY_S)

    def _displace(self, connection: ClientConnection, refusal: GatewayError) -> None:
        self.turned_away[TurnedAway.DISPLACED] += 1
        self.leave(connection)
        connection.turn_away(refusal)

    def _tell(self) -> None:
        now_s = self._clock()
        if now_s - self._told_s >= _LOG_AGAIN_S:
            self._told_s = now_s
            _LOG.warning(
                "%d connections are open, as many as the limit on open files allows (ulimit -n): new ones are refused, "
                "or take the place of one that has shown no key",
                self.max_connections,
            )

    # ---- bytes ------------------------------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """Bytes held now."""
        return self._unchecked_bytes + self._checked_bytes

    def hold(self, request: HeldRequest) -> None:
        """Count the growth of a request. Raises GatewayError (429) if that is too much."""
        more = request.size - request.counted
        if request.released or request.streamed or more <= 0:
            return
        if request.tenant is None:
            request.counted = request.size
            self._unchecked[request] = None
            self._unchecked_bytes += more
            self._make_room(request)
        else:
            self._take(request.tenant, more)
            request.counted = request.size

    def admit(self, request: HeldRequest, tenant: str) -> None:
        """A request's key was checked: its connection may stay, and its bytes count for its tenant.

        Raises GatewayError (429) if that is too much.
        """
        connection = request.connection
        if self._unauthenticated.pop(connection, self) is None:
            self._authenticated.add(connection)
        if request.released or request.tenant is not None:
            return
        self._take(tenant, request.size)
        self._forget_unchecked(request)
        request.tenant, request.counted = tenant, request.size

    def release(self, request: HeldRequest) -> None:
        """The answer to a request, or its connection, has ended. Later calls change nothing."""
        if request.released:
            return
        if request.tenant is None:
            self._forget_unchecked(request)
        else:
            self._checked_bytes -= request.counted
            left = self._of_tenants.pop(request.tenant, 0) - request.counted
            if left > 0:
                self._of_tenants[request.tenant] = left
        request.released = True

    def _forget_unchecked(self, request: HeldRequest) -> None:
        if self._unchecked.pop(request, self) is None:
            self._unchecked_bytes -= request.counted

    def _make_room(self, newest: HeldRequest) -> None:
        while self._unchecked_bytes > self.max_unauthenticated_bytes:
            first = next(iter(self._unchecked))
            refusal = self._too_much(
                f"{self.max_unauthenticated_bytes} of requests whose key has not been checked"
            )
            self.release(first)
            if first is newest:
                self.turned_away[TurnedAway.BYTES] += 1
                raise refusal
            self._displace(first.connection, refusal)

    def _take(self, tenant: str, more: int) -> None:
        limit = self.max_bytes - self.max_unauthenticated_bytes
        free = limit - self._checked_bytes - more
        if free < 0:
            self.turned_away[TurnedAway.BYTES] += 1
            raise self._too_much(f"{limit} in all")
        if tenant:
            theirs = self._of_tenants.get(tenant, 0) + more
            if theirs > free:
                self.turned_away[TurnedAway.BYTES] += 1
                raise self._too_much(f"of a tenant as many as are still free, {free} now")
            self._of_tenants[tenant] = theirs
        self._checked_bytes += more

    def _too_much(self, accepted: str) -> GatewayError:
        message = (
            f"{self.held_bytes} bytes of requests are held here; accepted: {accepted} (--max-buffered-mib); try again "
            "later"
        )
        return GatewayError(429, "buffer_full", message, retry_after_s=_RETRY_S)
