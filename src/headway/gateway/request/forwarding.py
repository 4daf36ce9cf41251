"""Forwards what the gateway does not serve itself: to one instance, or to all if it changes instances."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.types import Receive, Scope

from headway.gateway.fleet.adapters import ADAPTERS
from headway.gateway.fleet.member import Condition, Member
from headway.gateway.http.api import response_of_path
from headway.gateway.http.asgi_client import (
    Client,
    ClientGone,
    body_pieces,
    client_headers,
    read_body,
    target_url,
    upstream_headers,
)
from headway.gateway.http.client_limits import HELD
from headway.gateway.http.refusal import GatewayError, closing, no_instance, too_large
from headway.gateway.request.admission_queue import QueuedRequest
from headway.gateway.request.body_reader import BodyReader
from headway.gateway.request.generation_request import Outline, checked_hints, priority_of, tenant_of
from headway.gateway.request.interrupt import Cut, Interrupt, WaitCut
from headway.gateway.request.serving import InstanceLost, Serving
from headway.http_client import NO_ANSWER, named

_COMPUTED = re.compile(
    "/(?:v1|v2|inference|cohere)/|/(?:invocations|pooling|classify|score|rerank|generative_scoring)(?:/|$)"
)
"""Requests under these paths are computed by engines, also under an instance's `--root-path`,"""
_NOT_COMPUTED = ("/cancel", "/count_tokens", "/render", "/derender")
"""except for paths that end like this."""

_TO_ALL = frozenset({
    "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/pause", "/resume", "/sleep", "/wake_up",
    "/abort_requests", "/inference/v1/abort_requests", "/collective_rpc", "/reset_prefix_cache",
    "/reset_mm_cache", "/reset_encoder_cache", "/release_kv_cache_memory", "/start_profile", "/stop_profile",
    "/start_weight_update", "/start_draft_weight_update", "/update_weights", "/finish_weight_update",
    "/update_weight_version",
})  # fmt: skip
"""vLLM's paths whose POST must reach all instances."""
_FIRST_ERROR = 400
_NOTHING_SAID = Outline(model="", sequences=1)
_ANSWERS = (Condition.READY, Condition.UNWELL, Condition.DRAINING)


@dataclass(slots=True)
class PassThrough:
    """Streams both ways, to the instances in turn, without retries."""

    serving: Serving
    bodies: BodyReader
    _turn: int = 0

    async def __call__(self, scope: Scope, receive: Receive, client: Client, key_tenant: str) -> None:
        """Answer one request; requests that engines compute are admitted first, within the limits of all requests.

        Raises GatewayError (400, 403, 408, 413, 429, 502, 503), and ClientGone if only hanging up is left.
        """
        serving = self.serving
        response_id = response_of_path(scope["path"])
        if response_id is not None:
            serving.stored.check(response_id, key_tenant)
        interrupt = Interrupt()
        scope[HELD].on_gone = interrupt.client_left
        upload = _Upload(scope, receive, serving.options.max_body_bytes)
        serving.running.add(interrupt)
        admission: QueuedRequest | None = None
        outline = _NOTHING_SAID
        try:
            if _is_computed(scope) or (scope["method"] == "POST" and serving.fleet.is_mixed):
                # A client may leave while its request is queued, which shows once its whole body has arrived.
                named = serving.options.names_tenants
                body = await upload.hold()
                outlining = self.bodies.outline(body, key_tenant=key_tenant, names_tenants=named)
                outline = await interrupt.wait(outlining)
            if _is_computed(scope):
                admission = await self._enter(scope, key_tenant, interrupt, outline.sequences)
            await self._ask(scope, upload, client, interrupt, outline)
        except WaitCut as cut:
            if cut.reason is Cut.GONE or client.began:
                raise ClientGone from None
            raise (serving.too_old() if cut.reason is Cut.TOO_OLD else closing()) from None
        finally:
            serving.running.discard(interrupt)
            if admission is not None:
                serving.queue.leave(admission)

    async def _enter(
        self, scope: Scope, key_tenant: str, interrupt: Interrupt, sequences: int
    ) -> QueuedRequest:
        """Wait for a place, no longer than requests may. The start of its answer is not tracked."""
        serving = self.serving
        hints = checked_hints(scope["headers"], {}, None)
        tenant = tenant_of(hints.tenant, key_tenant) if serving.options.names_tenants else ""
        with serving.limited(interrupt):
            priority = priority_of(hints.priority, key_tenant) or 0
            admission = await serving.queue.enter(tenant, priority, interrupt, sequences)
        serving.queue.began(admission)
        return admission

    async def _ask(
        self, scope: Scope, upload: _Upload, client: Client, interrupt: Interrupt, outline: Outline
    ) -> None:
        """Send the request to an instance. Raises WaitCut if that is cut short, except by the instance's loss."""
        serving, member = self.serving, self._member(response_of_path(scope["path"]), outline.model)
        try:
            with serving.at(member, outline.sequences, interrupt):
                await self._pass(scope, upload, client, member, interrupt)
            member.served += 1
        except (*NO_ANSWER, InstanceLost) as error:
            raise self._broken(upload, client, member, str(error)) from None

    def _member(self, response_id: str | None, model: str) -> Member:
        """The instance that has the requested response, else the next in turn of those with the model."""
        names = self.serving.where(response_id, model)
        self._turn += 1
        return self.serving.fleet.member(names[self._turn % len(names)])

    def _broken(self, upload: _Upload, client: Client, member: Member, reason: str) -> Exception:
        """The exception for a request that did not reach its end."""
        if upload.problem is not None:
            return upload.problem
        self.serving.fleet.suspect(member.name)
        if client.began:
            return ClientGone()
        return GatewayError(502, "bad_instance", f"{member.name} did not answer ({reason})")

    async def _pass(
        self, scope: Scope, upload: _Upload, client: Client, member: Member, interrupt: Interrupt
    ) -> None:
        serving = self.serving
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
    computed = scope["method"] == "POST" and _COMPUTED.search(path) is not None
    return computed and not path.endswith(_NOT_COMPUTED)


class _Upload:
    """A request's body in transit. `problem` is what ended it too early, since the sender wraps errors in its own."""

    def __init__(self, scope: Scope, receive: Receive, limit_bytes: int) -> None:
        """Raises GatewayError (413) for a body that announces too much."""
        self._scope = scope
        self._receive = receive
        self._limit_bytes = limit_bytes
        self._held: list[bytes] | None = None
        self.problem: GatewayError | ClientGone | None = None
        fields = dict(scope["headers"])
        size = fields.get(b"content-length", b"")
        if size.isdigit() and int(size) > limit_bytes:
            raise too_large(limit_bytes)
        self.is_there = (size.isdigit() and int(size) > 0) or b"transfer-encoding" in fields
        self.headers = [("content-length", size.decode())] if self.is_there and size else []

    async def hold(self) -> bytes:
        """Read the whole body now, and return it. Raises `problem`, as `parts` does."""
        body = b"".join([part async for part in self._parts()]) if self.is_there else b""
        self._held = [body] if body else []
        return body

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the held parts, or parts as they arrive: see `_parts`."""
        if self._held is None:
            async for part in self._parts():
                yield part
        else:
            while self._held:
                yield self._held.pop(0)

    async def _parts(self) -> AsyncIterator[bytes]:
        """Yield parts as they arrive.

        Raises `problem`: GatewayError for too many bytes (413) or none for long (408), ClientGone if they break off.
        """
        try:
            async for part in body_pieces(self._scope, self._receive, self._limit_bytes):
                if part:
                    yield part
        except (GatewayError, ClientGone) as problem:
            self.problem = problem
            raise


@dataclass(frozen=True, slots=True)
class _InstanceAnswer:
    instance: str
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


def goes_to_all(scope: Scope) -> bool:
    """Whether a request must reach all instances."""
    method, path = scope["method"], scope["path"]
    if method == "DELETE":
        return bool(path.startswith(f"{ADAPTERS}/"))
    return method == "POST" and (path in _TO_ALL or path == ADAPTERS)


@dataclass(slots=True)
class Broadcast:
    """Asks every instance at once, and answers for all of them."""

    serving: Serving

    async def __call__(self, scope: Scope, receive: Receive, client: Client) -> None:
        """Pass on the first answer if all are alike.

        Raises GatewayError (502), with names, if some instances did not do it or could not be asked; also (400, 408,
        413, 503), and ClientGone if the request breaks off.
        """
        serving = self.serving
        body = await read_body(scope, receive, serving.options.max_body_bytes)
        gone = (Condition.PARKED, Condition.STOPPED)
        members = [member for member in serving.fleet.members if member.condition not in gone]
        if not serving.fleet.names():
            raise no_instance()
        interrupt = Interrupt()
        scope[HELD].on_gone = interrupt.client_left
        serving.running.add(interrupt)
        try:
            answers = await interrupt.wait(
                asyncio.gather(*(self._ask(member, scope, body) for member in members))
            )
        except WaitCut as cut:
            if cut.reason is Cut.CLOSING:
                raise closing() from None
            return
        finally:
            serving.running.discard(interrupt)
            for (
                member
            ) in members:  # even if no client waits for the answer: the instances may act all the same
                serving.fleet.learn_again(member.name)
        if any(answer.status < _FIRST_ERROR for answer in answers):
            serving.fleet.adapters.note(scope["method"], scope["path"], body)
        await self._answer(answers, client)

    async def _answer(self, answers: list[_InstanceAnswer], client: Client) -> None:
        first = answers[0]
        failed = [answer for answer in answers if answer.status >= _FIRST_ERROR]
        if failed and any(answer.status != first.status for answer in answers):
            told = "; ".join(
                f"{each.instance}: {each.body[:200].decode(errors='replace')}" for each in failed
            )
            message = f"{len(failed)} of {len(answers)} instances did not do it: {told}"
            raise GatewayError(502, "not_all", message)
        await client.begin(first.status, first.headers)
        await client.end(first.body)

    async def _ask(self, member: Member, scope: Scope, body: bytes) -> _InstanceAnswer:
        """The answer of one instance, or why there is none."""
        if member.condition not in _ANSWERS:
            return _silent(member, f"it is {member.condition}")
        interrupt = Interrupt()
        try:
            with self.serving.at(member, 1, interrupt):
                return await interrupt.wait(self._send(member, scope, body))
        except NO_ANSWER as error:
            self.serving.fleet.suspect(member.name)
            return _silent(member, named(error))
        except InstanceLost:
            return _silent(member, "it was lost")

    async def _send(self, member: Member, scope: Scope, body: bytes) -> _InstanceAnswer:
        headers = upstream_headers(scope["headers"], with_key=self.serving.passes_key(member))
        url = target_url(member.url, scope)
        async with self.serving.session.request(
            scope["method"], url, data=body, headers=headers, allow_redirects=False
        ) as response:
            answer = await response.read()
            sized = [each for each in client_headers(response) if each[0] != b"content-length"]
            sized.append((b"content-length", b"%d" % len(answer)))
            return _InstanceAnswer(member.name, response.status, sized, answer)


def _silent(member: Member, why: str) -> _InstanceAnswer:
    refusal = GatewayError(502, "bad_instance", f"{member.name} did not answer ({why})")
    return _InstanceAnswer(member.name, refusal.status, refusal.headers, refusal.body)
