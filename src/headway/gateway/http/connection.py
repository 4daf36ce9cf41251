"""One client's connection, with limits on request heads, and on clients that neither send nor read."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from headway.gateway.http.asgi_client import STALLED_S
from headway.gateway.http.client_limits import COPIES, HELD, ClientLimits, HeldRequest
from headway.gateway.http.refusal import GatewayError, bad_request, head_too_large, no_upgrade, url_too_long

MAX_HEAD_BYTES = 64 * 2**10
MAX_HEADERS = 100
MAX_PIPELINED = 100
"""Requests of one connection that may wait for the answer to an earlier one."""
MAX_IGNORED_BYTES = 64 * 2**20
"""Bytes read and dropped after a request was refused: many clients send everything before they listen."""
_PIECE_BYTES = 16 * 2**10
"""The parser gets pieces of this size, so it exceeds a limit by at most one piece."""
_SEPARATOR_BYTES = 4
"""A colon, a space and the line end."""


class Connection(HttpToolsProtocol):
    """uvicorn's connection, which only limits idle time after an answer, with more limits.

    A request with too large a head is refused, and the connection ends. The head is everything except the body: URL,
    headers, trailers, and chunk lines with their extensions. It may have MAX_HEAD_BYTES and MAX_HEADERS in all. Chunk
    lines are free while they are at most half as long as their chunks. A connection with over MAX_PIPELINED unanswered
    requests is cut. `ClientLimits` limits all connections together.

    A request to upgrade the connection is answered without the upgrade, and the connection ends. With a body it is
    refused, since the parser would take that body for the next request; so is a WebSocket.

    A connection ends if a request's head is incomplete STALLED_S after its first byte (for the first request, after the
    connection's start). It also ends if a client reads nothing of a waiting answer for STALLED_S; the request is then
    cancelled. TCP keep-alive finds clients that have vanished.
    """

    def __init__(self, limits: ClientLimits, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._held: HeldRequest | None = None
        self._body_bytes = 0
        self._chunks: list[bytes] = []
        self.url = b""
        self.headers = []
        self._answered: RequestResponseCycle | None = None
        self._refusal: GatewayError | None = None
        self._head_bytes = 0
        self._unpaid_bytes = 0
        self._head_due: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._unread_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request, if the limits have room for the connection."""
        super().connection_made(transport)
        connected = transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._limits.enter(self, -1 if connected is None else connected.fileno()):
            self._await_head()
        else:
            self._refuse(self._limits.full())

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting, and tell the request that is being answered; uvicorn tells only the newest one."""
        self._head_is_here()
        self._stop_looking()
        self._limits.leave(self)
        for cycle in (self._answered, *(waiting for waiting, _ in self.pipeline)):
            if cycle is not None:
                self._limits.release(_held(cycle))
        if self._held is not None:
            self._limits.release(self._held)
        if self._answered is not None and not self._answered.response_complete:
            _disconnect(self._answered)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self.pipeline.clear()
        # Each leads back to this connection, and it would be garbage that only a collection of all garbage frees.
        self.scope = self.cycle = self._held = self._answered = self._refusal = None  # type: ignore[assignment]

    # ---- input ------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Feed the parser in pieces. Bytes between two requests begin a head."""
        if self._head_due is None and self.cycle is not None and self.cycle.response_complete:
            self._await_head()
        pieces = memoryview(data)
        for start in range(0, len(data), _PIECE_BYTES):
            piece = pieces[start : start + _PIECE_BYTES]
            self._unpaid_bytes += len(piece)
            super().data_received(piece)  # type: ignore[arg-type]
            if self.transport.is_closing():
                return
            self._take_chunks()
            if self._unpaid_bytes > MAX_HEAD_BYTES:
                self._refuse(self._too_large())
                return
            if self._held is not None and not self._hold(self._held):
                return

    def on_message_begin(self) -> None:
        """Count what the request holds from its first byte on."""
        super().on_message_begin()
        self._body_bytes = 0
        self._held = HeldRequest(self)
        self.scope[HELD] = self._held  # type: ignore[literal-required]

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count and keep a header or trailer."""
        if len(self.headers) == MAX_HEADERS:
            self._stop_parsing(self._too_large())
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request. From now on its body has its own time limit (`asgi_client.body_pieces`)."""
        headers_bytes = sum(len(name) + len(value) + _SEPARATOR_BYTES for name, value in self.headers)
        self._head_bytes = len(self.url) + headers_bytes
        if self._head_bytes > MAX_HEAD_BYTES:
            self._stop_parsing(self._too_large())
        if len(self.pipeline) == MAX_PIPELINED:
            raise ConnectionAbortedError(f"over {MAX_PIPELINED} pipelined requests")
        upgrades = self.parser.should_upgrade()
        if upgrades and self._cannot_ignore_upgrade():
            self._stop_parsing(no_upgrade())
        self._head_is_here()
        super().on_headers_complete()
        if upgrades:
            self.cycle.keep_alive = False
        if 0 < len(self.pipeline) < MAX_PIPELINED:
            self.flow.resume_reading()  # otherwise the connection's end would go unnoticed
        # Trailers go to this copy: they count, and never become headers of the request.
        self.headers = list(self.headers)

    def on_body(self, body: bytes) -> None:
        """Keep a chunk until the parser has had its piece: there may be a thousand in one."""
        self._chunks.append(body)

    def _take_chunks(self) -> None:
        """Two bytes of the body pay for themselves and for a byte of their chunk's line, never for the head."""
        if not self._chunks:
            return
        body = b"".join(self._chunks)
        self._chunks.clear()
        self._unpaid_bytes = max(self._head_bytes, self._unpaid_bytes - len(body) * 3 // 2)
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The next byte belongs to another request."""
        self._take_chunks()
        held, self._held = self._held, None
        assert held is not None
        held.is_whole = True
        held.size = self._head_bytes + COPIES * self._body_bytes
        if held.tenant is not None or self.pipeline:  # otherwise its key is about to be checked
            try:
                self._limits.hold(held)
            except GatewayError as refusal:
                self._stop_parsing(refusal)
        self._unpaid_bytes = self._head_bytes = 0
        super().on_message_complete()
        if self._answered is self.cycle:
            self.flow.resume_reading()  # otherwise the connection's end would go unnoticed

    def on_response_complete(self) -> None:
        """The answered request holds nothing any more."""
        if self._answered is not None:
            self._limits.release(_held(self._answered))
        super().on_response_complete()

    def turn_away(self, refusal: GatewayError) -> None:
        """Make room for another connection."""
        if not self.transport.is_closing():
            self._refuse(refusal)

    def _hold(self, held: HeldRequest) -> bool:
        """Count an incomplete request; return whether the connection continues."""
        if held.released:
            if self._body_bytes > MAX_IGNORED_BYTES:
                self.transport.abort()
            return True
        held.size = max(self._head_bytes, self._unpaid_bytes) + COPIES * self._body_bytes
        try:
            self._limits.hold(held)
        except GatewayError as refusal:
            self._refuse(refusal)
            return False
        return True

    def send_400_response(self, msg: str) -> None:
        """Answer a request on which the parser stopped."""
        self._refuse(self._refusal or bad_request("the request is not valid HTTP; accepted: HTTP/1.1"))

    def _too_large(self) -> GatewayError:
        if 2 * len(self.url) > MAX_HEAD_BYTES:
            return url_too_long(MAX_HEAD_BYTES)
        return head_too_large(MAX_HEAD_BYTES, MAX_HEADERS)

    def _stop_parsing(self, refusal: GatewayError) -> None:
        """Raise inside a parser callback, which leads to `send_400_response`."""
        self._refusal = refusal
        del refusal  # its traceback has this frame
        raise self._refusal

    def _refuse(self, refusal: GatewayError) -> None:
        """Answer and end the connection; only end it if the answer would follow, or break, another one."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            _disconnect(cycle)
            if self.pipeline or cycle.response_started or not cycle.more_body:
                self.transport.abort()
                return
        headers = [*refusal.headers, (b"connection", b"close")]
        lines = [b"%b: %b\r\n" % header for header in headers]
        self.transport.write(b"".join([STATUS_LINE[refusal.status], *lines, b"\r\n", refusal.body]))
        self.transport.close()

    def _cannot_ignore_upgrade(self) -> bool:
        said = dict(self.headers)
        has_body = b"transfer-encoding" in said or said.get(b"content-length", b"0") != b"0"
        return has_body or said.get(b"upgrade", b"").lower() == b"websocket"

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def _await_head(self) -> None:
        self._head_due = self.loop.call_later(STALLED_S, self.transport.abort)

    def _head_is_here(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None

    # ---- output -----------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """The output buffer is full: check from time to time whether it drains."""
        super().pause_writing()
        self._look_later()

    def resume_writing(self) -> None:
        """The client has read: less is left to send."""
        self._stop_looking()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """No further request has arrived. A client that has not even read the last answer is cut."""
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


def _held(cycle: RequestResponseCycle) -> HeldRequest:
    found: HeldRequest = cycle.scope[HELD]  # type: ignore[literal-required]
    return found


def _disconnect(cycle: RequestResponseCycle) -> None:
    cycle.disconnected = True
    cycle.message_event.set()
    if (on_gone := _held(cycle).on_gone) is not None:
        on_gone()
