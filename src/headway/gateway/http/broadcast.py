"""What changes an instance rather than asking it something is asked of all of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import aiohttp

from headway.gateway.fleet.member import Condition, Member
from headway.gateway.http.asgi_client import (
    Client,
    Receive,
    Scope,
    client_headers,
    read_body,
    target_url,
    upstream_headers,
    watch_client,
)
from headway.gateway.http.refusal import Refusal, closing, no_instance
from headway.gateway.request.interrupt import Cut, Interrupt, WaitCut
from headway.gateway.request.serving import Serving
from headway.http_client import named

_TO_ALL = frozenset(
    {
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/pause",
        "/resume",
        "/sleep",
        "/wake_up",
        "/abort_requests",
        "/inference/v1/abort_requests",
        "/collective_rpc",
        "/reset_prefix_cache",
        "/reset_mm_cache",
        "/reset_encoder_cache",
        "/release_kv_cache_memory",
        "/start_profile",
        "/stop_profile",
        "/start_weight_update",
        "/start_draft_weight_update",
        "/update_weights",
        "/finish_weight_update",
        "/update_weight_version",
    }
)
"""Paths of vLLM's whose POST one instance alone should not get."""
_ADAPTERS = "/adapters"
"""The same as SageMaker has it: POST, and DELETE of a name under it."""
_FIRST_ERROR = 400
_ANSWERS = (Condition.READY, Condition.UNWELL, Condition.DRAINING)


@dataclass(frozen=True, slots=True)
class _Answer:
    instance: str
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    @property
    def failed(self) -> bool:
        return self.status >= _FIRST_ERROR


def goes_to_all(scope: Scope) -> bool:
    """Whether a request is one that all instances should get."""
    method, path = scope["method"], scope["path"]
    if method == "DELETE":
        return bool(path.startswith(f"{_ADAPTERS}/"))
    return method == "POST" and (path in _TO_ALL or path == _ADAPTERS)


class Broadcast:
    """Asks every instance at once, and answers for all of them."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, client: Client) -> None:
        """Pass on the answer of the first if all answered alike.

        Raises Refusal (502) if some did not do it, which it names, or could not be asked; (400, 408, 413, 503) too, and
        ClientGone if the request breaks off.
        """
        serving = self._serving
        body = await read_body(scope["headers"], receive, serving.options.max_body_bytes)
        members = [member for member in serving.fleet.members if member.condition is not Condition.STOPPED]
        if not serving.fleet.names():
            raise no_instance()
        interrupt = Interrupt()
        serving.running.add(interrupt)
        watcher = asyncio.create_task(watch_client(receive, interrupt))
        try:
            answers = await interrupt.wait(
                asyncio.gather(*(self._ask(member, scope, body) for member in members))
            )
        except WaitCut as cut:
            if cut.reason is Cut.CLOSING:
                raise closing() from None
            return
        finally:
            watcher.cancel()
            serving.running.discard(interrupt)
            for member in members:  # also where nobody waits for the answer: they may do it all the same
                serving.fleet.learn_again(member.name)
        await self._answer(answers, client)

    async def _answer(self, answers: list[_Answer], client: Client) -> None:
        first = answers[0]
        failed = [answer for answer in answers if answer.failed]
        if failed and any(answer.status != first.status for answer in answers):
            told = "; ".join(
                f"{each.instance}: {each.body[:200].decode(errors='replace')}" for each in failed
            )
            raise Refusal(502, "not_all", f"{len(failed)} of {len(answers)} instances did not do it: {told}")
        await client.begin(first.status, first.headers)
        await client.end(first.body)

    async def _ask(self, member: Member, scope: Scope, body: bytes) -> _Answer:
        """What one says, or why it says nothing."""
        if member.condition not in _ANSWERS:
            return _silent(member, f"it is {member.condition}")
        interrupt = Interrupt()
        member.in_flight += 1
        try:
            with self._serving.losses.cutting(member.name, member.loss, interrupt):
                return await interrupt.wait(self._send(member, scope, body))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._serving.fleet.suspect(member.name)
            return _silent(member, named(error))
        except WaitCut:
            return _silent(member, "it was lost")
        finally:
            member.in_flight -= 1

    async def _send(self, member: Member, scope: Scope, body: bytes) -> _Answer:
        headers = upstream_headers(scope["headers"], with_key=self._serving.passes_key(member))
        url = target_url(member.url, scope)
        async with self._serving.session.request(
            scope["method"], url, data=body, headers=headers, allow_redirects=False
        ) as response:
            answer = await response.read()
            sized = [each for each in client_headers(response) if each[0] != b"content-length"]
            sized.append((b"content-length", b"%d" % len(answer)))
            return _Answer(member.name, response.status, sized, answer)


def _silent(member: Member, why: str) -> _Answer:
    refusal = Refusal(502, "bad_instance", f"{member.name} did not answer ({why})")
    return _Answer(member.name, refusal.status, refusal.headers, refusal.body)
