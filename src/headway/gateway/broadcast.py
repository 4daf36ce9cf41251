"""What changes an instance rather than asking it something is asked of all of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import aiohttp

from headway.gateway.edge import (
    Client,
    Receive,
    Scope,
    client_headers,
    read_body,
    target_url,
    upstream_headers,
    watch_client,
)
from headway.gateway.endpoint import named
from headway.gateway.instances.member import Member
from headway.gateway.interrupt import Cut, Interrupt, WaitCut
from headway.gateway.refusal import Refusal, closing, no_instance
from headway.gateway.serving import Serving

TO_ALL = frozenset(
    {
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/pause",
        "/resume",
        "/sleep",
        "/wake_up",
        "/abort_requests",
        "/collective_rpc",
        "/reset_prefix_cache",
        "/reset_mm_cache",
        "/reset_encoder_cache",
        "/start_profile",
        "/stop_profile",
        "/init_weight_transfer_engine",
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
        "/update_weight_version",
    }
)
"""Paths of vLLM's whose POST one instance alone should not get."""
_FIRST_ERROR = 400


@dataclass(frozen=True, slots=True)
class _Answer:
    instance: str
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    @property
    def failed(self) -> bool:
        return self.status >= _FIRST_ERROR


class Broadcast:
    """Asks every instance that can serve, at once, and answers for all of them."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, client: Client) -> None:
        """Pass on the answer of the first if all of them did it, or if none did; else raise Refusal (502).

        Raises Refusal (400, 408, 413, 503) too, and ClientGone if the request breaks off.
        """
        serving = self._serving
        body = await read_body(scope["headers"], receive, serving.options.max_body_bytes)
        members = [serving.fleet.member(name) for name in serving.fleet.names()]
        if not members:
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
        for member in members:
            serving.fleet.learn_again(member.name)
        failed = [answer for answer in answers if answer.failed]
        if failed and len(failed) < len(answers):
            told = "; ".join(
                f"{each.instance}: {each.body[:200].decode(errors='replace')}" for each in failed
            )
            raise Refusal(502, "not_all", f"{len(failed)} of {len(answers)} instances did not do it: {told}")
        first = answers[0]
        await client.begin(first.status, first.headers)
        await client.end(first.body)

    async def _ask(self, member: Member, scope: Scope, body: bytes) -> _Answer:
        headers = upstream_headers(scope["headers"], with_key=self._serving.passes_key(member))
        try:
            async with self._serving.session.request(
                scope["method"],
                target_url(member.url, scope),
                data=body,
                headers=headers,
                allow_redirects=False,
            ) as response:
                answer = await response.read()
                sized = [each for each in client_headers(response) if each[0] != b"content-length"]
                sized.append((b"content-length", b"%d" % len(answer)))
                return _Answer(member.name, response.status, sized, answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._serving.fleet.suspect(member.name)
            refusal = Refusal(502, "bad_instance", f"{member.name} did not answer ({named(error)})")
            return _Answer(member.name, refusal.status, refusal.headers, refusal.body)
