"""ASGI without a framework, for what Headway adds to vLLM's API server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_TYPES = {400: "BadRequestError", 404: "NotFoundError", 503: "ServiceUnavailableError"}


async def send_error(send: Send, status: int, message: str, param: str | None = None) -> None:
    """Answer with an error of the shape that OpenAI's and Anthropic's clients read, in vLLM's words."""
    error = {"message": message, "type": _TYPES[status], "param": param, "code": status}
    await send_json(send, status, {"type": "error", "error": error})


async def send_json(send: Send, status: int, answer: dict[str, Any]) -> None:
    """Answer with an object."""
    body = msgspec.json.encode(answer)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
