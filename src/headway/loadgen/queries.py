"""Asking a running server, or a gateway, why a request took as long as it did."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec

from headway.errors import ConfigError, UpstreamError
from headway.gateway.http.refusal import message_of
from headway.http_client import api_url, open_session

TIMEOUT_S = 30.0


async def ask_about(url: str, request_id: str | None, api_key: str | None = None) -> dict[str, Any]:
    """What `GET /v1/explain/ID` answers there; without an id, the last requests.

    Raises ConfigError for a request that nobody there knows of, UpstreamError for a server that cannot say.
    """
    address = api_url(url, "explain" if request_id is None else f"explain/{quote(request_id, safe='')}")
    async with open_session(api_key, TIMEOUT_S) as session:
        answer = await get_json(session, address)
    if not isinstance(answer.get("requests"), list):
        raise UpstreamError(f"{address} answered with what was not asked for: {str(answer)[:200]}")
    return answer


async def get_json(session: aiohttp.ClientSession, address: str) -> dict[str, Any]:
    """The object at an address. Raises ConfigError for what nobody there knows of, UpstreamError for anything else."""
    try:
        async with session.get(address) as response:
            status, body = response.status, await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise UpstreamError(f"{address} does not answer ({type(error).__name__}: {error})") from None
    if status != 200:
        raise _refused(address, status, body)
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise UpstreamError(f"{address} answered with what was not asked for: {body[:200]!r}") from None


def _refused(address: str, status: int, body: bytes) -> ConfigError | UpstreamError:
    """The server's own words, if it has some; a page that is not there at all is no Headway server's."""
    if status == 401:
        return UpstreamError(f"{address} wants a key; accepted: --api-key KEY, or OPENAI_API_KEY")
    message = message_of(body)
    if message is not None:
        return (
            ConfigError(message) if status == 404 else UpstreamError(f"{address}: {message} (HTTP {status})")
        )
    if status == 404:
        return UpstreamError(
            f"{address} is not there; accepted: a server that `headway serve` started, or VLLM_PLUGINS naming headway"
        )
    return UpstreamError(f"{address} answered HTTP {status}")
