"""Sends a batch's requests through the path of every other request, and collects the answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from starlette.types import Message

from headway.core.hints import TBT, TTFT
from headway.core.slo import MAX_TARGET_S, Slo
from headway.gateway.book.accounts import BatchLine
from headway.gateway.http.asgi_client import Client, Headers
from headway.gateway.http.client_limits import COPIES, ClientLimits, HeldRequest
from headway.gateway.http.refusal import GatewayError
from headway.gateway.request.body_reader import BodyReader
from headway.gateway.request.generation_request import GenerationRequest
from headway.gateway.request.interrupt import Interrupt
from headway.gateway.request.lifecycle import serve
from headway.gateway.request.serving import Serving

_HEADERS: Headers = [(b"content-type", b"application/json")]
_LATER = (429, 503)
_FAULTS = (0, 408, 500, 502, 504)


class Reply(NamedTuple):
    """The answer to a request; status 0 means none. `request_id` is the id under which it was served."""

    status: int
    body: bytes
    request_id: str

    @property
    def is_for_later(self) -> bool:
        """Whether there was no room for the request, so that it is sent again later."""
        return self.status in _LATER

    @property
    def is_fault(self) -> bool:
        """Whether the server failed, so that the request may be tried a few more times."""
        return self.status in _FAULTS


@dataclass(slots=True)
class _KeptAnswer:
    """An ASGI `send` that stores what is sent."""

    parts: list[bytes] = field(default_factory=list)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            self.parts.append(message.get("body", b""))


class _NoConnection:
    """Takes the place of a client connection for requests of batches."""

    def turn_away(self, refusal: GatewayError) -> None:
        """Nothing: there is no connection to close."""


@dataclass(frozen=True, slots=True)
class Asking:
    """Sends requests of batches. They have a deadline as their only target, and no priority over others."""

    serving: Serving
    bodies: BodyReader
    limits: ClientLimits

    async def read(self, path: str, body: bytes, tenant: str, request_id: str) -> GenerationRequest:
        """Read a request as `read_request` does. Raises GatewayError, also for another tenant's response."""
        request = await self.bodies.read(
            path,
            _HEADERS,
            body,
            request_id=request_id,
            key_tenant=tenant,
            names_tenants=self.serving.options.names_tenants,
        )
        if request.previous_id is not None:
            self.serving.stored.check(request.previous_id, tenant)
        return request

    async def ask(
        self, request: GenerationRequest, line: BatchLine, deadline_s: float, interrupt: Interrupt
    ) -> Reply:
        """Serve a request and return the answer, whatever happens to it."""
        own_s = request.slo.deadline_s
        request.batch = line
        request.slo = Slo(deadline_s=min(deadline_s, MAX_TARGET_S, inf if own_s is None else own_s))
        request.xargs = {name: said for name, said in request.xargs.items() if name not in (TTFT, TBT)}
        request.priority = None if request.priority is None else max(0, request.priority)
        answer = _KeptAnswer()
        client = Client(answer.send)
        await serve(self.serving, request, client, _HEADERS, interrupt, self.serving.clock())
        return Reply(client.status, b"".join(answer.parts), request.request_id)

    @contextmanager
    def holding(self, body: bytes, tenant: str) -> Iterator[None]:
        """Count a body among the held bytes. Raises GatewayError (429) if that is too much."""
        held = HeldRequest(_NoConnection(), COPIES * len(body), tenant=tenant)
        try:
            self.limits.hold(held)
            yield
        finally:
            self.limits.release(held)
