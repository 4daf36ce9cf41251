"""Everything that the gateway does not serve itself goes to an instance as it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp

from headway.gateway.fleet.member import Member
from headway.gateway.http.asgi_client import (
    Client,
    ClientGone,
    Headers,
    Receive,
    Scope,
    client_headers,
    next_piece,
    target_url,
    upstream_headers,
    watch_client,
)
from headway.gateway.http.refusal import Refusal, closing, too_large
from headway.gateway.request.admission_queue import Visit
from headway.gateway.request.body_reader import BodyReader
from headway.gateway.request.generation_request import checked_hints, priority_of, tenant_of
from headway.gateway.request.interrupt import Cut, Interrupt, WaitCut
from headway.gateway.request.serving import Serving
from headway.gateway.request.stored_responses import response_of_path

_COMPUTED = (
    "/v1/",
    "/v2/",
    "/inference/",
    "/cohere/",
    "/invocations",
    "/pooling",
    "/classify",
    "/score",
    "/rerank",
    "/generative_scoring",
)
"""What engines compute is asked for under these paths,"""
_NOT_COMPUTED = ("/cancel", "/count_tokens", "/render", "/derender")
"""but for those that end so."""


class PassThrough:
    """Streams both ways, to the instances in turn. What breaks, breaks: there is no other attempt."""

    def __init__(self, serving: Serving, bodies: BodyReader) -> None:
        self._serving = serving
        self._bodies = bodies
        self._turn = 0

    async def __call__(self, scope: Scope, receive: Receive, client: Client, key_tenant: str) -> None:
        """Answer one request; what is to be computed is let in first, as far as the limits of all requests allow.

        Raises Refusal (400, 403, 408, 413, 429, 502, 503); ClientGone where all that is left is to hang up.
        """
        serving = self._serving
        response_id = response_of_path(scope["path"])
        if response_id is not None:
            serving.stored.check(response_id, key_tenant)
        interrupt = Interrupt()
        upload = _Upload(scope["headers"], receive, interrupt, serving.options.max_body_bytes)
        serving.running.add(interrupt)
        visit: Visit | None = None
        try:
            if _is_computed(scope):
                # A client that waits at the door may leave, which is seen once its whole body has come.
                sequences = await interrupt.wait(self._bodies.count(await upload.hold()))
                visit = await self._enter(scope, key_tenant, interrupt, sequences)
            await self._ask(scope, upload, client, interrupt, 1 if visit is None else visit.sequences)
        except WaitCut as cut:
            if cut.reason is Cut.GONE or client.began:
                raise ClientGone from None
            raise (serving.too_old() if cut.reason is Cut.TOO_OLD else closing()) from None
        finally:
            serving.running.discard(interrupt)
            upload.close()
            if visit is not None:
                serving.turnstile.leave(visit)

    async def _enter(self, scope: Scope, key_tenant: str, interrupt: Interrupt, sequences: int) -> Visit:
        """Wait for a place, no longer than requests may. When its answer begins is not looked at."""
        serving = self._serving
        hints = checked_hints(scope["headers"], {}, None)
        tenant = tenant_of(hints.tenant, key_tenant)
        with serving.limited(interrupt):
            priority = priority_of(hints.priority, key_tenant) or 0
            visit = await serving.turnstile.enter(tenant, priority, interrupt, sequences)
        serving.turnstile.began(visit)
        return visit

    async def _ask(
        self, scope: Scope, upload: _Upload, client: Client, interrupt: Interrupt, sequences: int
    ) -> None:
        """Send it to an instance. Raises WaitCut where that is cut short, but for the instance's loss."""
        serving, member = self._serving, self._member(response_of_path(scope["path"]))
        member.in_flight += sequences
        try:
            with serving.losses.cutting(member.name, member.loss, interrupt):
                await self._pass(scope, upload, client, member, interrupt)
            member.served += 1
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._broken(upload, client, member, str(error)) from None
        except WaitCut as cut:
            if cut.reason is not Cut.LOST:
                raise
            raise self._broken(upload, client, member, "lost") from None
        finally:
            member.in_flight -= sequences

    def _member(self, response_id: str | None) -> Member:
        """The instance that has the response which is asked for, else the next in turn."""
        names = self._serving.where(response_id)
        self._turn += 1
        return self._serving.fleet.member(names[self._turn % len(names)])

    def _broken(self, upload: _Upload, client: Client, member: Member, reason: str) -> Exception:
        """What is to be raised when it did not come to its end."""
        if upload.problem is not None:
            return upload.problem
        self._serving.fleet.suspect(member.name)
        if client.began:
            return ClientGone()
        return Refusal(502, "bad_instance", f"{member.name} did not answer ({reason})")

    async def _pass(
        self, scope: Scope, upload: _Upload, client: Client, member: Member, interrupt: Interrupt
    ) -> None:
        serving = self._serving
        headers = upstream_headers(scope["headers"], with_key=serving.passes_key(member))
        response = await interrupt.wait(
            serving.session.request(
                scope["method"],
                target_url(member.url, scope),
                data=upload.parts() if upload.is_there else None,
                headers=[*headers, *upload.headers],
                allow_redirects=False,
            )
        )
        try:
            await client.begin(response.status, client_headers(response))
            while data := await interrupt.wait(response.content.readany()):
                await client.pass_on(data)
            await client.end()
        finally:
            response.close()


def _is_computed(scope: Scope) -> bool:
    path = scope["path"]
    return scope["method"] == "POST" and path.startswith(_COMPUTED) and not path.endswith(_NOT_COMPUTED)


class _Upload:
    """A request's body on its way. `problem` is what ended it too early: the sender wraps errors in its own."""

    def __init__(self, headers: Headers, receive: Receive, interrupt: Interrupt, limit_bytes: int) -> None:
        """Raises Refusal (413) for a body that says it is too long."""
        self._receive = receive
        self._interrupt = interrupt
        self._limit_bytes = limit_bytes
        self._watcher: asyncio.Task[None] | None = None
        self._held: list[bytes] | None = None
        self.problem: Refusal | ClientGone | None = None
        fields = dict(headers)
        size = fields.get(b"content-length", b"")
        if size.isdigit() and int(size) > limit_bytes:
            raise too_large(limit_bytes)
        self.is_there = (size.isdigit() and int(size) > 0) or b"transfer-encoding" in fields
        self.headers = [("content-length", size.decode())] if self.is_there and size else []
        if not self.is_there:
            self._watch()

    def close(self) -> None:
        """The request is over."""
        if self._watcher is not None:
            self._watcher.cancel()

    def _watch(self) -> None:
        """Nothing more comes from the client but its end."""
        self._watcher = asyncio.create_task(watch_client(self._receive, self._interrupt))

    async def hold(self) -> bytes:
        """Read all of it now, and return it. Raises `problem`, as `parts`."""
        body = b"".join([part async for part in self._parts()]) if self.is_there else b""
        self._held = [body] if body else []
        return body

    async def parts(self) -> AsyncIterator[bytes]:
        """Those that are held, or as they come: see `_parts`."""
        if self._held is None:
            async for part in self._parts():
                yield part
        else:
            while self._held:
                yield self._held.pop(0)

    async def _parts(self) -> AsyncIterator[bytes]:
        """As they come.

        Raises `problem`: Refusal for too many bytes (413) or none for long (408), ClientGone if they break off.
        """
        size, more = 0, True
        while more:
            try:
                part, more = await next_piece(self._receive)
            except (Refusal, ClientGone) as problem:
                self.problem = problem
                raise
            size += len(part)
            if size > self._limit_bytes:
                self.problem = too_large(self._limit_bytes)
                raise self.problem
            if part:
                yield part
        self._watch()
