"""Everything that the gateway does not serve itself goes to an instance as it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
from yarl import URL

from headway.gateway.edge import (
    Client,
    ClientGone,
    Headers,
    Receive,
    Scope,
    client_headers,
    next_piece,
    upstream_headers,
    watch_client,
)
from headway.gateway.endpoint import root_of
from headway.gateway.instances.member import Member
from headway.gateway.interrupt import Cut, Interrupt, WaitCut
from headway.gateway.refusal import Refusal, bad_request, no_instance, too_large
from headway.gateway.serving import Serving


class PassThrough:
    """Streams both ways, to the instances in turn. What breaks, breaks: there is no other attempt."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._turn = 0

    async def __call__(self, scope: Scope, receive: Receive, client: Client) -> None:
        """Answer one request. Raises Refusal (400, 413, 502, 503); ClientGone where all that is left is to hang up."""
        serving = self._serving
        _check_path(scope["raw_path"])
        names = serving.fleet.names()
        if not names:
            raise no_instance()
        self._turn += 1
        member = serving.fleet.member(names[self._turn % len(names)])
        interrupt = Interrupt()
        upload = _Upload(scope["headers"], receive, interrupt, serving.options.max_body_bytes)
        serving.running.add(interrupt)
        member.in_flight += 1
        try:
            with serving.losses.cutting(member.name, member.loss, interrupt):
                await self._pass(scope, upload, client, member, interrupt)
            member.served += 1
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._broken(upload, client, member, str(error)) from None
        except WaitCut as cut:
            if cut.reason is Cut.GONE:
                raise ClientGone from None
            raise self._broken(upload, client, member, cut.reason.name.lower()) from None
        finally:
            member.in_flight -= 1
            serving.running.discard(interrupt)
            upload.close()

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
        path, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
        url = root_of(member.url) + path + (f"?{query}" if query else "")
        headers = upstream_headers(scope["headers"], with_key=serving.passes_key(member))
        response = await interrupt.wait(
            serving.session.request(
                scope["method"],
                URL(url, encoded=True),  # as it came: a `..` taken up here would lead to another path
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


def _check_path(path: bytes) -> None:
    """Raise Refusal (400) unless it is a path: behind an instance's address `*@host/` would name another host."""
    if not path.startswith(b"/"):
        raise bad_request(f"the path is {path.decode('latin-1')[:80]!r}; accepted: one that begins with /")


class _Upload:
    """A request's body on its way. `problem` is what ended it too early: the sender wraps errors in its own."""

    def __init__(self, headers: Headers, receive: Receive, interrupt: Interrupt, limit_bytes: int) -> None:
        """Raises Refusal (413) for a body that says it is too long."""
        self._receive = receive
        self._interrupt = interrupt
        self._limit_bytes = limit_bytes
        self._watcher: asyncio.Task[None] | None = None
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

    async def parts(self) -> AsyncIterator[bytes]:
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
