"""Questions to a running server: its metrics, why a request took long, and its recent requests."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec

from headway.errors import ConfigError, UpstreamError
from headway.http_client import NOT_AS_EXPECTED, api_url, get, message_of, open_session, root_of

TIMEOUT_S = 30.0


async def scrape(url: str, prefix: str) -> dict[str, float]:
    """Sums over all labels of the Prometheus samples whose names start with `prefix`, by name.

    The prefix may extend into the labels. Raises UpstreamError if the server does not answer with metrics.
    """
    address = f"{root_of(url)}/metrics"
    async with open_session(timeout_s=TIMEOUT_S) as session:
        status, body = await get(session, address)
    if status != 200:
        raise UpstreamError(f"{address} answered HTTP {status}")
    return sums(address, body, (prefix,))


def sums(address: str, body: bytes, prefixes: tuple[str, ...]) -> dict[str, float]:
    """The sums of `scrape` for metrics from an address. Raises UpstreamError if the body has no samples."""
    try:
        lines = [line for line in body.decode().split("\n") if line.startswith(prefixes)]
    except UnicodeDecodeError:
        raise UpstreamError(f"{address} answered with what is no text") from None
    found: defaultdict[str, float] = defaultdict(float)
    for line in lines:
        labelled, _, value = line.rpartition(" ")
        try:
            found[labelled.partition("{")[0]] += float(value)
        except ValueError:
            raise UpstreamError(f"{address} answered with what is no sample: {line[:200]!r}") from None
    return dict(found)


async def ask_about(url: str, request_id: str | None, api_key: str | None = None) -> dict[str, Any]:
    """The answer to `GET /v1/explain/ID`; without an id, the last requests.

    Raises ConfigError for a request that the server does not know, UpstreamError for a server that cannot answer.
    """
    address = api_url(url, "explain" if request_id is None else f"explain/{quote(request_id, safe='')}")
    async with open_session(api_key, TIMEOUT_S) as session:
        answer = await get_json(session, address)
    if not isinstance(answer.get("requests"), list):
        raise UpstreamError(f"{address} answered with what was not asked for: {str(answer)[:200]}")
    return answer


async def ask_window(session: aiohttp.ClientSession, url: str, counts: str) -> dict[str, Any]:
    """What the engine at `url` has not reported since `counts` (ENDED-STEPS).

    Raises UpstreamError for a server that cannot answer, or one with several engines: each would have counts of its
    own.
    """
    windows = (await get_json(session, api_url(url, f"shadow/{counts}"))).get("windows")
    if not isinstance(windows, list) or len(windows) != 1:
        raise UpstreamError(
            f"{url} has {len(windows or ())} engines to shadow; accepted: servers of one engine"
        )
    window: dict[str, Any] = windows[0]
    return window


async def get_json(session: aiohttp.ClientSession, address: str) -> dict[str, Any]:
    """The object at an address. Raises ConfigError if the server does not know it, UpstreamError for all else."""
    status, body = await get(session, address)
    if status != 200:
        raise _refused(address, status, body)
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except NOT_AS_EXPECTED:
        raise UpstreamError(f"{address} answered with what was not asked for: {body[:200]!r}") from None


def _refused(address: str, status: int, body: bytes) -> ConfigError | UpstreamError:
    """The server's own message, if it has one; a 404 without a message does not come from a Headway server."""
    if status == 401:
        return UpstreamError(f"{address} wants a key; add --api-key KEY, or set OPENAI_API_KEY")
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
