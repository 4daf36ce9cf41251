"""Client for OpenAI-compatible servers: URLs, sessions, answers, models and errors."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import msgspec

from headway.errors import ConfigError, UpstreamError

CONNECT_TIMEOUT_S = 30.0

FIRST_SERVER_FAULT = 500
"""Statuses from here on are faults of the server; lower ones blame the request, or an API that is not offered."""

KEEP_ALIVE_S = 2.0
"""Shorter than any server's keep-alive (vLLM: 5 s), so that few requests go out on a connection that is closing."""

NO_ANSWER = (aiohttp.ClientError, TimeoutError, OSError)
"""Exceptions of a request that got no answer, or only part of one."""
NOT_AS_EXPECTED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions of decoding a body that has another shape or is nested too deep."""


@dataclass(slots=True)
class UsedConnection:
    """The connection that carried a request. A traced session fills in the one passed as `trace_request_ctx`."""

    kept: bool = False
    """Whether the connection was kept from an earlier request, so that the server may have closed it meanwhile."""


async def _note_kept(_session: object, context: SimpleNamespace, _parameters: object) -> None:
    if isinstance(context.trace_request_ctx, UsedConnection):
        context.trace_request_ctx.kept = True


_TRACED = aiohttp.TraceConfig()
_TRACED.on_connection_reuseconn.append(_note_kept)


class Model(msgspec.Struct):
    """A model that a server lists, and its context length if the server states it."""

    id: str
    max_model_len: int | None = None


class ModelList(msgspec.Struct):
    """The answer to `GET /v1/models`."""

    data: list[Model]


class _ErrorMessage(msgspec.Struct):
    message: str


class _ErrorBody(msgspec.Struct):
    error: _ErrorMessage


def named(error: Exception) -> str:
    """An error as text: its kind, and its message if it has one."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def message_of(body: bytes) -> str | None:
    """The message of a server's error; None if the error is not of OpenAI's shape."""
    try:
        return msgspec.json.decode(body, type=_ErrorBody).error.message
    except NOT_AS_EXPECTED:
        return None


def open_session(
    api_key: str | None = None, timeout_s: float | None = None, *, traced: bool = True
) -> aiohttp.ClientSession:
    """Open a session without a limit on connections; `timeout_s` limits a whole request, None for no limit.

    The session keeps no cookies: one client's must not reach another. Only a `traced` session fills in a
    `UsedConnection`, which costs time for each request and each piece of its answer.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S),
        headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
        trace_configs=[_TRACED] if traced else [],
    )


def api_url(url: str, path: str) -> str:
    """URL of an API path under a server's base URL. Raises ConfigError if `url` is not an HTTP URL."""
    return f"{root_of(url)}/v1/{path}"


def root_of(url: str) -> str:
    """The server's root URL: its base URL without a trailing `/v1`.

    Raises ConfigError if `url` is not an HTTP URL.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError.of("url", repr(url), "a base URL such as http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1")


def without_secrets(url: str) -> str:
    """The URL without user name and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


async def get(
    session: aiohttp.ClientSession, address: str, timeout_s: float | None = None
) -> tuple[int, bytes]:
    """Fetch an address; return status and body. Without `timeout_s` the session's limit holds.

    Raises UpstreamError if the server does not answer.
    """
    limit = session.timeout if timeout_s is None else aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with session.get(address, timeout=limit) as response:
            return response.status, await response.read()
    except NO_ANSWER as error:
        hint = "; is a server running there?" if isinstance(error, aiohttp.ClientConnectorError) else ""
        raise UpstreamError(f"{address} does not answer ({type(error).__name__}: {error}){hint}") from None


async def find_model(session: aiohttp.ClientSession, url: str, name: str | None) -> tuple[str, int | None]:
    """Find the served model of that name (None: the first). Returns its name, and its context length if stated.

    Raises UpstreamError if the server does not answer like an OpenAI-compatible one, ConfigError if it lacks the model.
    """
    address = api_url(url, "models")
    status, body = await get(session, address, CONNECT_TIMEOUT_S)
    try:
        models = msgspec.json.decode(body, type=ModelList).data
    except NOT_AS_EXPECTED:
        raise UpstreamError(
            f"{address} answered HTTP {status}, and not with a list of models: {body[:200]!r}"
        ) from None
    for model in models:
        if name in (None, model.id):
            return model.id, model.max_model_len
    served = ", ".join(model.id for model in models) or "none"
    raise ConfigError(f"model {name!r} is not served at {url}; served: {served}")
