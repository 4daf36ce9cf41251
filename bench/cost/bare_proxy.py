"""The least that a proxy in Python does, beside the gateway: `python bench/cost/bare_proxy.py PORT UPSTREAM`.

Reads the body, parses it as JSON, forwards it, and passes the answer's bytes on as they come; no routing, no books.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route

_HOP_BY_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"host"}


class Proxy:
    """A raw ASGI endpoint."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Forward one request."""
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        json.loads(body)
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        headers = {name.decode(): value.decode() for name, value in _kept(scope["headers"])}
        url = self._upstream + scope["path"]
        async with self._session.post(url, data=body, headers=headers) as answer:
            kept = _kept(answer.raw_headers)
            await send({"type": "http.response.start", "status": answer.status, "headers": kept})
            async for data in answer.content.iter_any():
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _kept(headers: Any) -> list[tuple[bytes, bytes]]:
    lowered = ((name.lower(), value) for name, value in headers)
    return [(name, value) for name, value in lowered if name not in _HOP_BY_HOP]


def main() -> None:
    """Serve on a port of this machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("upstream")
    arguments = parser.parse_args()
    app = Starlette(routes=[Route("/v1/completions", Proxy(arguments.upstream), methods=["POST"])])
    uvicorn.run(
        app, port=arguments.port, loop="uvloop", http="httptools", access_log=False, log_level="warning"
    )


if __name__ == "__main__":
    main()
