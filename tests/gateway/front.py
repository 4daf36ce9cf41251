"""A gateway at work before small instances of the test's own, and a client of it that keeps every byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from headway.gateway.app import Gateway, serve_on
from headway.gateway.book.accounts import Accounts
from headway.gateway.fleet.fleet import Fleet
from headway.gateway.fleet.member import Member
from headway.gateway.fleet.scaling import FleetScaling
from headway.gateway.fleet.supervisor import FleetOptions
from headway.gateway.http.options import GatewayOptions
from headway.gateway.http.server import listen
from headway.gateway.request.central_queue import CentralBatching
from headway.routing import build_router
from headway.routing.scaling import Bounds, Scaler
from tests.gateway.fleets import QUICK, running, until
from tests.gateway.upstream import Upstream

PROMPT = {"model": "small", "prompt": "one two three", "max_tokens": 8}
CHAT = {"model": "small", "messages": [{"role": "user", "content": "one two three"}], "max_tokens": 8}


@dataclass
class Answer:
    """The answer that a client received."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json["error"]
        return found

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of a stream, without the end mark, which must be there."""
        *events, done = [line[6:] for line in self.body.split(b"\n") if line.startswith(b"data: ")]
        assert done == b"[DONE]"
        return [json.loads(event) for event in events]

    @property
    def text(self) -> str:
        """All text of a stream."""
        choices = [choice for event in self.events for choice in event.get("choices", [])]
        return "".join(
            choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices
        )


@dataclass
class Front:
    """A gateway and the way to it."""

    url: str
    app: Gateway
    fleet: Fleet
    session: aiohttp.ClientSession
    stop: asyncio.Event
    task: asyncio.Task[None]

    @property
    def accounts(self) -> Accounts:
        return self.app.serving.accounts

    async def post(self, body: object, path: str = "/v1/completions", **headers: str) -> Answer:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {
            "Content-Type": "application/json",
            **{key.replace("_", "-"): headers[key] for key in headers},
        }
        return await ask(self.session, "POST", self.url + path, data, named)

    async def get(self, path: str, **headers: str) -> Answer:
        return await ask(self.session, "GET", self.url + path, None, headers)

    async def upload(self, data: bytes, filename: str = "in.jsonl", **headers: str) -> dict[str, Any]:
        """A file for batches, as the gateway shows it."""
        form = aiohttp.FormData()
        form.add_field("purpose", "batch")
        form.add_field("file", data, filename=filename)
        async with self.session.post(f"{self.url}/v1/files", data=form, headers=headers) as response:
            assert response.status == 200
            found: dict[str, Any] = await response.json()
            return found

    async def idle(self) -> None:
        """Return once every request has ended, in the books too."""
        await until(lambda: not self.accounts.live and not self.app.serving.running)
        self.accounts.check()
        assert not self.app.serving.queue.waiting
        assert not self.app.serving.queue.inside
        assert all(member.in_flight == 0 for member in self.fleet.members)


async def ask(
    session: aiohttp.ClientSession, method: str, url: str, data: bytes | None, headers: dict[str, str]
) -> Answer:
    async with session.request(method, url, data=data, headers=headers, allow_redirects=False) as response:
        found = {name.lower(): value for name, value in response.headers.items()}
        return Answer(response.status, found, await response.read())


@asynccontextmanager
async def gateway(
    *upstreams: Upstream,
    router: str = "round-robin",
    fleet_options: FleetOptions = QUICK,
    batching: CentralBatching | None = None,
    scale: Bounds | None = None,
    **options: Any,
) -> AsyncIterator[Front]:
    """A gateway whose instances are ready, named as the upstreams are. Nothing of a request is left at its end."""
    members = [
        Member(each.name or str(index), each.name.rpartition("-")[0], url=each.url)
        for index, each in enumerate(upstreams)
    ]
    async with running(*members, options=fleet_options) as fleet, aiohttp.ClientSession() as session:
        await until(lambda: len(fleet.names()) == len(members))
        scaling = None if scale is None else FleetScaling(fleet, Scaler(scale))
        made = GatewayOptions(**options)
        app = Gateway(fleet, build_router(router), made, batching=batching, scaling=scaling)
        listener, stop = listen("127.0.0.1", 0), asyncio.Event()
        task = asyncio.create_task(serve_on(app, listener, stop))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        front = Front(url, app, fleet, session, stop, task)
        try:
            yield front
            if not stop.is_set():
                await front.idle()
        finally:
            app.serving.cut_all()
            stop.set()
            await session.close()
            await task
