"""One client's connection: nobody keeps it, and what hangs on it, by neither sending nor reading."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headway.gateway.edge import STALLED_S


class Connection(HttpToolsProtocol):
    """uvicorn's, which bounds only how long a connection is idle after an answer.

    Hangs up where the head of a request is not whole STALLED_S after it has begun, the first one's from the beginning,
    and where bytes of an answer lie here and the client takes none of them for as long: its request is cut short then,
    as of one that has left, and gives back its place. The system asks whether a client that says nothing is still
    there.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_due: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._unread_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        connected = transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._head_is_here()
        self._stop_looking()
        super().connection_lost(exc)

    # ---- who does not send ------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Bytes between two requests are the beginning of a head."""
        if self._head_due is None and self.cycle is not None and self.cycle.response_complete:
            self._await_head()
        super().data_received(data)

    def on_headers_complete(self) -> None:
        """It is whole: from now on its body has a time of its own (`edge.next_piece`)."""
        self._head_is_here()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._head_due = self.loop.call_later(STALLED_S, self.transport.abort)

    def _head_is_here(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None

    # ---- who does not read ------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """More lies here than fits: look now and then whether it becomes less."""
        super().pause_writing()
        self._look_later()

    def resume_writing(self) -> None:
        """It has become less."""
        self._stop_looking()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """No other request has come. Who has not even read the last answer is not waited for."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _look_later(self) -> None:
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._looking = self.loop.call_later(STALLED_S, self._look)

    def _look(self) -> None:
        if self.transport.get_write_buffer_size() < self._unread_bytes:
            self._look_later()
        else:
            self.transport.abort()

    def _stop_looking(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
