"""Asking engines what their requests came to, for shadows."""

from __future__ import annotations

from typing import Any

import aiohttp

from headway.errors import UpstreamError
from headway.http_client import api_url
from headway.loadgen.queries import get_json


async def ask_window(session: aiohttp.ClientSession, url: str, counts: str) -> dict[str, Any]:
    """What the engine at `url` has not told since `counts` (ENDED-STEPS).

    Raises UpstreamError for a server that cannot say, or of several engines: each would have counts of its own.
    """
    answer = await get_json(session, api_url(url, f"shadow/{counts}"))
    windows = answer.get("windows")
    if not isinstance(windows, list) or len(windows) != 1:
        raise UpstreamError(
            f"{url} has {len(windows or ())} engines to shadow; accepted: servers of one engine"
        )
    window: dict[str, Any] = windows[0]
    return window
