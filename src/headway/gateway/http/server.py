"""The server below the app: uvicorn, which takes connections as fast as they come and leaves signals alone."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import uvicorn

from headway.errors import ConfigError

_LOG = logging.getLogger(__name__)
_BACKLOG = 2048
_ACCEPTED_A_TURN = 32
_PAUSE_S = 1.0


def listen(host: str, port: int) -> socket.socket:
    """Open a socket to serve on; port 0 takes a free one. Raises ConfigError if the address is not available."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG, reuse_port=False)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


class FrontServer(uvicorn.Server):
    """uvicorn on one listener. Its caller says when it stops.

    A turn of the loop takes up to _ACCEPTED_A_TURN connections. uvloop's own server takes one, so a client behind a
    crowd of new connections would wait for as many turns.
    """

    def __init__(self, config: uvicorn.Config, listener: socket.socket) -> None:
        super().__init__(config)
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[object]] = set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the app, then accept connections."""
        await super().startup([])
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listener, then let open connections end."""
        self._loop.remove_reader(self._listener)
        self._listener.close()
        if self._beginning:
            await asyncio.wait(self._beginning, timeout=_PAUSE_S)
        for handshake in self._beginning:
            handshake.cancel()
        await super().shutdown([])

    def _accept(self) -> None:
        kind: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        make = partial(
            kind,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        for _ in range(_ACCEPTED_A_TURN):
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                _LOG.error("no connection can be taken: %s", error)
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_PAUSE_S, self._go_on)
                return
            accepted.setblocking(False)
            beginning = self._loop.create_task(
                self._loop.connect_accepted_socket(make, accepted, ssl=self.config.ssl)
            )
            self._beginning.add(beginning)
            beginning.add_done_callback(self._begun)

    def _go_on(self) -> None:
        if not self.should_exit:
            self._loop.add_reader(self._listener, self._accept)

    def _begun(self, task: asyncio.Task[object]) -> None:
        self._beginning.discard(task)
        if not task.cancelled():
            task.exception()  # a TLS handshake that failed is the client's mistake
