"""An ASGI application on a free port of this machine, for as long as a test looks at it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from headway.gateway.app import Gateway
from headway.gateway.http.connection import Connection


class _Server(uvicorn.Server):
    """Leaves signals to the tests."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(app: ASGIApp, port: int = 0) -> AsyncIterator[str]:
    """Serve the application and yield its base URL; at the end every connection is closed."""
    http = (
        cast("type[asyncio.Protocol]", partial(Connection, app.limits))
        if isinstance(app, Gateway)
        else "auto"
    )
    config = uvicorn.Config(app, http=http, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
    server = _Server(config)
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        task = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            while not server.started:
                await asyncio.sleep(0.01)
                assert not task.done(), "the server ended while starting"
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task
