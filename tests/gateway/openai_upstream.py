"""A small server that speaks OpenAI's API as vLLM does: it answers with as many tokens as were asked for.

The prompt HOLD is answered when the client has gone; a stream of BREAK breaks off after two tokens.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from headway.gateway.app import Gateway, serve_on
from headway.gateway.fleet.member import Member
from headway.gateway.fleet.scaling import FleetScaling
from headway.gateway.http.options import GatewayOptions
from headway.gateway.http.server import listen
from headway.routing import build_router
from headway.routing.scaling import Bounds, Scaler
from tests.gateway.fleets import running, until
from tests.gateway.named_upstream import BREAK, HOLD, MODEL, messages, responses
from tests.gateway.named_upstream import TOKEN as _TOKEN


class Bad(Exception):
    """A request with content that is not accepted."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _checked(body: Any, *, chat: bool) -> dict[str, Any]:
    """The body, if it can be answered; Bad if not."""
    if not isinstance(body, dict):
        raise Bad(400, "the body is no object")
    if body.get("model", MODEL) != MODEL:
        raise Bad(404, f"The model `{body['model']}` does not exist.")
    prompt = body.get("messages" if chat else "prompt")
    if not prompt or not isinstance(prompt, list if chat else list | str):
        raise Bad(400, "no prompt")
    if chat and not all(isinstance(message, dict) and "role" in message for message in prompt):
        raise Bad(400, "a message without a role")
    tokens = body.get("max_tokens", 4)
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise Bad(400, f"max_tokens is {tokens!r}")
    return {**body, "max_tokens": min(tokens, 64)}


def _prompts(body: dict[str, Any]) -> int:
    """The number of prompts: a list of texts or of lists of tokens has one each."""
    prompt = body.get("prompt")
    return len(prompt) if isinstance(prompt, list) and isinstance(prompt[0], str | list) else 1


def _usage(body: dict[str, Any]) -> dict[str, int]:
    return {
        "prompt_tokens": 3,
        "completion_tokens": body["max_tokens"],
        "total_tokens": 3 + body["max_tokens"],
    }


def _whole(body: dict[str, Any], *, chat: bool) -> dict[str, Any]:
    """An answer in one piece."""
    text = _TOKEN * body["max_tokens"]
    content = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    choices = [{"index": index, **content, "finish_reason": "length"} for index in range(_prompts(body))]
    kind = "chat.completion" if chat else "text_completion"
    return {
        "id": "a1",
        "object": kind,
        "created": 1,
        "model": MODEL,
        "choices": choices,
        "usage": _usage(body),
    }


def _events(body: dict[str, Any], *, chat: bool) -> Iterable[dict[str, Any]]:
    """The same in a token each, of one prompt; the token's number is its id."""
    kind = "chat.completion.chunk" if chat else "text_completion"
    head = {"id": "a1", "object": kind, "created": 1, "model": MODEL}
    if chat:
        yield {
            **head,
            "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}],
        }
    for number in range(1, body["max_tokens"] + 1):
        content: dict[str, Any] = {"delta": {"content": _TOKEN}} if chat else {"text": _TOKEN}
        reason = "length" if number == body["max_tokens"] else None
        choice = {"index": 0, **content, "finish_reason": reason}
        if body.get("return_token_ids"):
            choice["token_ids"] = [number]
        yield {**head, "choices": [choice]}
    if (body.get("stream_options") or {}).get("include_usage"):
        yield {**head, "choices": [], "usage": _usage(body)}


async def _answer(request: web.Request) -> web.StreamResponse:
    chat = request.path.endswith("chat/completions")
    try:
        body = _checked(await request.json(), chat=chat)
    except Bad as bad:
        error = {"message": str(bad), "type": "BadRequestError", "param": None, "code": bad.status}
        return web.json_response({"error": error}, status=bad.status)
    if body.get("prompt") == HOLD:
        await asyncio.Event().wait()
    if not body.get("stream"):
        return web.json_response(_whole(body, chat=chat))
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    for number, event in enumerate(_events(body, chat=chat)):
        if body.get("prompt") == BREAK and number == 2:
            assert request.transport is not None
            request.transport.close()
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


async def _models(_request: web.Request) -> web.Response:
    card = {"id": MODEL, "object": "model", "created": 1, "owned_by": "vllm", "max_model_len": 4096}
    return web.json_response({"object": "list", "data": [card]})


async def _version(_request: web.Request) -> web.Response:
    return web.json_response({"version": "0.32.0"})


async def _health(_request: web.Request) -> web.Response:
    return web.Response()


@asynccontextmanager
async def upstream() -> AsyncIterator[str]:
    """Run the server and yield its base URL."""
    app = web.Application()
    app.router.add_get("/v1/models", _models)
    app.router.add_get("/version", _version)
    app.router.add_get("/health", _health)
    app.router.add_post("/v1/completions", _answer)
    app.router.add_post("/v1/chat/completions", _answer)
    app.router.add_post("/v1/responses", responses)
    app.router.add_post("/v1/messages", messages)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def gateway(
    options: GatewayOptions | None = None, *, url: str | None = None, scale: Bounds | None = None
) -> AsyncIterator[str]:
    """The base URL of a gateway over one such server, or over whatever is at `url`."""
    async with upstream() as small, running(Member("up-0", url=url or small)) as fleet:
        if url is None:
            await until(fleet.names)
        scaling = None if scale is None else FleetScaling(fleet, Scaler(scale))
        made = options or GatewayOptions(drain_s=0.1)
        app = Gateway(fleet, build_router("round-robin"), made, scaling=scaling)
        listener, stop = listen("127.0.0.1", 0), asyncio.Event()
        server = asyncio.create_task(serve_on(app, listener, stop))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            stop.set()
            await server
