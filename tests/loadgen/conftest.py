"""A server that speaks as OpenAI-compatible ones do, and does what a test tells it to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

CONTEXT_TOKENS = 1000


@dataclass
class FakeServer:
    """Answers with `answer`, by default the tokens asked for; keeps the bodies it got."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    answer: Callable[[Stream], Awaitable[object]] | None = None
    refusal: web.Response | None = None
    metrics_text: str | Callable[[], str] | None = None
    gone: bool = False
    sick: bool = False
    disconnects: int = 0
    tokens: set[str | None] = field(default_factory=set)

    async def models(self, _request: web.Request) -> web.Response:
        if self.gone:
            return web.Response(status=503)
        models = [{"id": "fake", "max_model_len": CONTEXT_TOKENS}, {"id": "other"}]
        return web.json_response({"object": "list", "data": models})

    async def health(self, _request: web.Request) -> web.Response:
        return web.Response(status=503 if self.sick else 200)

    async def metrics(self, _request: web.Request) -> web.Response:
        if self.metrics_text is None:
            return web.Response(status=404)
        text = self.metrics_text if isinstance(self.metrics_text, str) else self.metrics_text()
        return web.Response(text=text)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        self.tokens.add(request.headers.get("Authorization"))
        body = await request.json()
        self.bodies.append(body)
        if self.refusal is not None:
            return web.Response(
                status=self.refusal.status, text=self.refusal.text, content_type=self.refusal.content_type
            )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        stream = Stream(body, request, response)
        try:
            await (self.answer or Stream.answer_in_full)(stream)
        except (ConnectionError, asyncio.CancelledError):
            self.disconnects += 1
            raise
        return response


@dataclass
class Stream:
    """One answer in the making."""

    body: dict[str, Any]
    request: web.Request
    response: web.StreamResponse
    sent_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        prompt = self.body["prompt"]
        return len(prompt.split()) if isinstance(prompt, str) else len(prompt)

    async def raw(self, data: bytes) -> None:
        await self.response.write(data)

    async def event(self, event: dict[str, Any]) -> None:
        # ensure_ascii=False leaves U+2028 as it is in the text, as vLLM does.
        await self.raw(b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n")

    async def token(self, text: str = "x", tokens: int = 1, **choice: Any) -> None:
        """One chunk of `tokens` tokens, with the running count if it was asked for."""
        self.sent_tokens += tokens
        event: dict[str, Any] = {"id": "c", "choices": [{"index": 0, "text": text, **choice}]}
        if self.body.get("stream_options", {}).get("continuous_usage_stats"):
            event["usage"] = self.usage()
        await self.event(event)

    def usage(self) -> dict[str, int]:
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.sent_tokens}

    async def end(self, finish_reason: str = "length", stop_reason: str | None = None) -> None:
        """Finish reason, usage and the end mark."""
        choice = {"index": 0, "text": "", "finish_reason": finish_reason, "stop_reason": stop_reason}
        await self.event({"id": "c", "choices": [choice]})
        await self.event({"id": "c", "choices": [], "usage": self.usage()})
        await self.raw(b"data: [DONE]\n\n")

    async def answer_in_full(self) -> None:
        for _ in range(self.body["max_tokens"]):
            await self.token()
        await self.end()

    def cut(self) -> None:
        """Close the connection in the middle of the answer, after what was written."""
        assert self.request.transport is not None
        self.request.transport.close()


@asynccontextmanager
async def running() -> AsyncIterator[FakeServer]:
    fake = FakeServer()
    app = web.Application()
    app.router.add_get("/v1/models", fake.models)
    app.router.add_get("/metrics", fake.metrics)
    app.router.add_get("/health", fake.health)
    app.router.add_post("/v1/completions", fake.completions)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    fake.url = f"http://{host}:{port}"
    yield fake
    await runner.cleanup()


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with running() as fake:
        yield fake


@pytest.fixture
async def other_server() -> AsyncIterator[FakeServer]:
    async with running() as fake:
        yield fake
