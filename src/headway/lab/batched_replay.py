"""Sends a trace to servers in whole batches, through a gateway of its own with a central queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from headway.core.record import Record
from headway.errors import ConfigError, UpstreamError
from headway.gateway.app import Gateway, serve_on
from headway.gateway.fleet.fleet import Fleet
from headway.gateway.fleet.member import Condition, Member
from headway.gateway.http.client_limits import raise_file_limit
from headway.gateway.http.options import GatewayOptions
from headway.gateway.http.server import listen
from headway.gateway.request.central_queue import CentralBatching
from headway.http_client import open_session
from headway.loadgen import ReplayOptions, ReplayReport, replay
from headway.loadgen.replay import unless
from headway.routing.load import LeastLoaded
from headway.traces import TraceRequest

_MOST_BUFFERED_MIB = 8192
"""Large enough that no request of the replay is refused."""


async def replay_batches(
    requests: Sequence[TraceRequest],
    options: ReplayOptions,
    batching: CentralBatching,
    urls: Sequence[str],
    *,
    on_record: Callable[[Record], None] = lambda record: None,
    stop: asyncio.Event | None = None,
) -> ReplayReport:
    """As `replay`, but through a gateway in this process that sends whole batches to the servers at these URLs.

    Raises as `replay` does, and, before anything is sent: UpstreamError if a server is not ready, ConfigError for a
    repeated URL.
    """
    if len(set(urls)) < len(urls):
        raise ConfigError(f"a URL is given twice: {', '.join(urls)}; accepted: each once")
    stop = stop or asyncio.Event()
    async with _gateway(batching, urls, options.api_key, stop) as app:
        if app is None:
            return ReplayReport("", interrupted=True)
        url, gateway = app
        report = await replay(
            requests, replace(options, url=url, api_key=None), on_record=on_record, stop=stop
        )
        assert gateway.serving.batches is not None, "it batches"
        report.batches = gateway.serving.batches.counts
        return report


@asynccontextmanager
async def _gateway(
    batching: CentralBatching, urls: Sequence[str], api_key: str | None, stop: asyncio.Event
) -> AsyncIterator[tuple[str, Gateway] | None]:
    """Yield a gateway in front of these servers and its URL; None if `stop` is set before they are ready."""
    raise_file_limit()
    async with open_session(api_key, traced=False) as session:
        fleet = Fleet((Member(url, url=url) for url in urls), session=session)
        app = Gateway(
            fleet,
            LeastLoaded(),
            GatewayOptions(max_buffered_mib=_MOST_BUFFERED_MIB, drain_s=0.0),
            batching=batching,
        )
        listener, ended = listen("127.0.0.1", 0), asyncio.Event()
        port = listener.getsockname()[1]
        watching = asyncio.create_task(fleet.run())
        serving = asyncio.create_task(serve_on(app, listener, ended))
        try:
            settled = await unless(stop, _until_ready(fleet))
            yield (f"http://127.0.0.1:{port}", app) if settled else None
        finally:
            ended.set()
            await serving
            await fleet.close(at_once=True)
            watching.cancel()
            await asyncio.wait([watching])


async def _until_ready(fleet: Fleet) -> bool:
    """Wait until all servers are ready; return True. Raises UpstreamError if one is not."""
    await fleet.until_settled()
    for member in fleet.members:
        if member.condition is not Condition.READY:
            raise UpstreamError(f"{member.name} is not ready ({member.reason})")
    return True
