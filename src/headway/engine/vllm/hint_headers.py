"""Reads targets, tenant and priority from a request's headers, for a server without a gateway.

vLLM reads hints from the body (`vllm_xargs`) and the priority from the header `X-Vllm-Priority`; this middleware writes
them there. The endpoint plug-in adds it to vLLM's app, after the check of API keys.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from headway.core.hints import (
    HINT_HEADERS,
    PRIORITY_HEADER,
    TENANT,
    RequestHints,
    hints_of_request,
    target_hints,
)
from headway.errors import HintError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_TYPES = {400: "BadRequestError", 404: "NotFoundError", 503: "ServiceUnavailableError"}


async def send_error(send: Send, status: int, message: str, param: str | None = None) -> None:
    """Answer with an error in the shape that OpenAI's and Anthropic's clients read, in vLLM's words."""
    error = {"message": message, "type": _TYPES[status], "param": param, "code": status}
    await send_json(send, status, {"type": "error", "error": error})


async def send_json(send: Send, status: int, answer: dict[str, Any]) -> None:
    """Answer with a JSON object."""
    body = msgspec.json.encode(answer)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


_PATHS = frozenset({"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"})
"""Paths whose bodies may have `vllm_xargs`; the gateway reads the headers on the same paths."""
_REWRITTEN = HINT_HEADERS | {b"content-length", b"transfer-encoding"}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class _Said(msgspec.Struct):
    """The hints in a body; numbers may be strings, as in vLLM."""

    vllm_xargs: dict[str, Any] | None = None
    priority: int | None = None


_decode_said = msgspec.json.Decoder(_Said, strict=False).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class HintHeaders:
    """ASGI middleware that moves hint headers to where vLLM reads hints.

    A value that is not accepted, or a header that contradicts the body, is a 400. Other requests pass unchanged.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if not _has_hints(scope):
            await self._app(scope, receive, send)
            return
        body = await _whole_body(receive)
        if body is None:
            return
        try:
            scope, body = _told(scope, body)
        except HintError as error:
            await send_error(send, 400, str(error), error.where)
            return
        pieces = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Any:
            return pieces.pop() if pieces else await receive()

        await self._app(scope, replay, send)


def _has_hints(scope: Scope) -> bool:
    return (
        scope["type"] == "http"
        and scope["method"] == "POST"
        and scope["path"].removeprefix(scope.get("root_path", "")) in _PATHS
        and not HINT_HEADERS.isdisjoint(name for name, _ in scope["headers"])
    )


async def _whole_body(receive: Receive) -> bytes | None:
    """Read the whole body; None if the client left first."""
    parts: list[bytes] = []
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


def _told(scope: Scope, body: bytes) -> tuple[Scope, bytes]:
    """The request with its hints where vLLM reads them. Raises HintError for bad hints."""
    try:
        text = body.removeprefix(_BYTE_ORDER_MARK)
        fields, said = _decode_fields(text), _decode_said(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HintError("body", f"the body cannot be read ({error}); accepted: a JSON object") from None
    hints = hints_of_request(scope["headers"], said.vllm_xargs or {}, said.priority)
    added = _xargs(hints)
    if added:
        fields["vllm_xargs"] = msgspec.Raw(msgspec.json.encode({**(said.vllm_xargs or {}), **added}))
        body = msgspec.json.encode(fields)
    headers = [each for each in scope["headers"] if each[0] not in _REWRITTEN]
    headers.append((b"content-length", b"%d" % len(body)))
    if hints.priority is not None:
        headers.append((PRIORITY_HEADER.encode(), b"%d" % hints.priority))
    return {**scope, "headers": headers}, body


def _xargs(hints: RequestHints) -> dict[str, Any]:
    return {**target_hints(hints.slo), **({TENANT: hints.tenant} if hints.tenant else {})}
