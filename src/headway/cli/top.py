"""`headway top`: a running gateway or server in the terminal, for those without a browser."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli import EXIT_INTERRUPTED
from headway.cli.options import ApiKey
from headway.errors import ConfigError, UpstreamError
from headway.setting import Setting

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

EPILOG = """Examples:

  headway top --url http://127.0.0.1:8000

  headway top --url http://127.0.0.1:8000 --every 10     # a look every ten seconds

  headway top --url http://127.0.0.1:8000 --once

A gateway shows goodput, instances, classes and the last requests. A single server shows its engine's figures. Where
stdout is no terminal, each look is one line. Ctrl-C ends it.
"""

_LEAST_EVERY_S = 0.2
_RECENT = 8
_RATES = {
    "requests": "vllm:request_success_total",
    "tokens": "vllm:generation_tokens_total",
    "steps": "headway_steps_total",
    "preemptions": "vllm:num_preemptions_total",
}
"""Counters of a single server of which each look shows the rate."""
_NOW = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "KV used": "vllm:kv_cache_usage_perc",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopFlags:
    """Which server to watch, and how often."""

    url: Annotated[str, Setting("Base URL of the gateway or server.", "URL")] = "http://127.0.0.1:8000"
    every: Annotated[float, Setting("Seconds between looks.", "S")] = 2.0
    once: Annotated[bool, Setting("Look once, then end.")] = False
    api_key: ApiKey = None


@dataclass(frozen=True, slots=True)
class Look:
    """The result of one look: a line for files, and the whole screen for a terminal."""

    line: str
    whole: RenderableType


def top(flags: TopFlags) -> None:
    """Watch a running gateway or server: goodput, instances, classes, last requests; or one engine's figures."""
    if not _LEAST_EVERY_S <= flags.every < inf:
        raise ConfigError.of("every", f"{flags.every:g}", f"{_LEAST_EVERY_S:g} s or more")
    try:
        asyncio.run(_watch(flags))
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


async def _watch(flags: TopFlags) -> None:
    """Look until interrupted. The first look must reach the server; later ones wait for it to return."""
    from rich.console import Console
    from rich.live import Live

    from headway.http_client import open_session
    from headway.loadgen.queries import TIMEOUT_S

    console = Console()
    async with open_session(flags.api_key, TIMEOUT_S) as session:
        watched = await _watched(session, flags.url)
        look = await watched.look()
        if flags.once or not console.is_terminal:
            console.print(look.whole) if console.is_terminal else typer.echo(look.line)
            while not flags.once:
                await asyncio.sleep(flags.every)
                typer.echo((await _patient(watched)).line)
            return
        with Live(look.whole, console=console, screen=True, auto_refresh=False) as live:
            while True:
                await asyncio.sleep(flags.every)
                live.update((await _patient(watched)).whole, refresh=True)


async def _patient(watched: WatchedGateway | WatchedServer) -> Look:
    try:
        return await watched.look()
    except (UpstreamError, ConfigError) as error:
        return Look(f"{_clock()}  {error}", f"{error}; trying again")


async def _watched(session: Any, url: str) -> WatchedGateway | WatchedServer:
    """Return a gateway if it has a dashboard, else a server with metrics. Raises UpstreamError for neither."""
    from headway.http_client import get, root_of

    status, _ = await get(session, f"{root_of(url)}/dashboard/state")
    if status == 401:
        raise UpstreamError(f"{url} wants a key; add --api-key KEY, or set OPENAI_API_KEY")
    return WatchedGateway(session, root_of(url)) if status == 200 else WatchedServer(session, root_of(url))


class WatchedGateway:
    """A gateway, read through the state behind its dashboard."""

    def __init__(self, session: Any, url: str) -> None:
        self._session = session
        self._url = url

    async def look(self) -> Look:
        """Poll once. Raises UpstreamError if the gateway does not answer."""
        from rich.console import Group

        from headway.loadgen.queries import get_json

        state = await get_json(self._session, f"{self._url}/dashboard/state")
        head = _gateway_line(state)
        return Look(head, Group(head, _instances(state), _classes(state), _recent(state)))


def _gateway_line(state: Mapping[str, Any]) -> str:
    load, minute, instances = state["load"], state["overall"]["minute"], state["instances"]
    ready = sum(one["condition"] == "ready" for one in instances)
    wanted = sum(one["condition"] != "parked" for one in instances)
    in_flight = sum(one["in_flight"] for one in instances)
    return (
        f"{_clock()}  {state['model'] or 'no model yet'}  {ready}/{wanted} ready  "
        f"in time {_share(minute['goodput'])}  {load['requests_per_s']:.1f} requests/s  "
        f"{load['output_tokens_per_s']:.0f} tokens/s  {in_flight} in flight  "
        f"{minute['expired'] + minute['shed'] + minute['failed']} not served"
    )


def _instances(state: Mapping[str, Any]) -> Table:
    rows = [
        (
            f"{one['name']} {one['pool']}".strip(),
            one["condition"],
            *(f"{one[key]}" for key in ("in_flight", "waiting")),
            *(_seconds(one[key]) for key in ("ttft_p50_s", "ttft_p99_s", "tbt_p50_s", "tbt_p99_s")),
            *(_share(one[key]) for key in ("kv_used", "cache_found")),
            *(f"{one[key]}" for key in ("served", "failures")),
        )
        for one in state["instances"]
    ]
    columns = ("instance", "condition", "in flight", "waiting", "TTFT p50", "p99", "TBT p50", "p99")
    return _table((*columns, "KV used", "cache hits", "served", "failed"), rows)


def _classes(state: Mapping[str, Any]) -> Table:
    rows = [
        (
            one["tenant"] or "(none)",
            one["slo"] or "none",
            *(_share(one[span]["goodput"]) for span in ("minute", "five_minutes")),
            *(f"{one['five_minutes'][key]}" for key in ("offered", "expired", "shed", "failed")),
        )
        for one in state["classes"]
    ]
    return _table(("tenant", "targets", "in time, 1 min", "5 min", "came", "expired", "shed", "failed"), rows)


def _recent(state: Mapping[str, Any]) -> Table:
    rows = [
        (
            one["id"],
            "finished late" if one["outcome"] == "finished" and not one["met"] else one["outcome"],
            _seconds(one["ttft_s"]),
            _seconds(one["lasted_s"]),
            f"{one['tokens']}",
        )
        for one in state["recent"][:_RECENT]
    ]
    return _table(("last requests", "ended", "first token", "whole", "tokens"), rows)


class WatchedServer:
    """A server without a gateway, read through vLLM's and Headway's metrics: gauges, and rates between two looks."""

    def __init__(self, session: Any, url: str) -> None:
        self._session = session
        self._url = url
        self._before: tuple[float, dict[str, float]] | None = None

    async def look(self) -> Look:
        """Poll once. Raises UpstreamError if the server does not answer with metrics."""
        from headway.http_client import get
        from headway.loadgen.queries import sums

        address = f"{self._url}/metrics"
        status, body = await get(self._session, address)
        if status != 200:
            raise UpstreamError(f"{address} answered HTTP {status}")
        found, now_s = sums(address, body, ("vllm:", "headway_")), time.monotonic()
        if _NOW["running"] not in found:
            raise UpstreamError(f"{address} has no metrics of vLLM's; accepted: a gateway or a vLLM server")
        cells = {name: found.get(metric, 0.0) for name, metric in _NOW.items()}
        shown = {
            name: _share(value) if name == "KV used" else f"{value:.0f}" for name, value in cells.items()
        }
        if self._before is not None:
            passed_s, before = now_s - self._before[0], self._before[1]
            for name, metric in _RATES.items():
                grown = found.get(metric, 0.0) - before.get(metric, 0.0)
                shown[f"{name}/s"] = f"{max(0.0, grown) / passed_s:.1f}"
        self._before = (now_s, found)
        line = "  ".join(f"{value} {name}" for name, value in shown.items())
        return Look(f"{_clock()}  {line}", _table(tuple(shown), [tuple(shown.values())]))


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, header_style="")
    for index, heading in enumerate(columns):
        table.add_column(heading, justify="right" if index > 1 else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def _share(part: float | None) -> str:
    return "–" if part is None else f"{part:.0%}"


def _seconds(value_s: float | None) -> str:
    from headway.explain.text import seconds

    return "–" if value_s is None else seconds(value_s)
