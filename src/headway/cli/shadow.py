"""`headway shadow`: how other policies would have served a running server's requests."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from headway.cli.options import ApiKey
from headway.errors import ConfigError, HeadwayError, UpstreamError
from headway.setting import Setting, Shown

if TYPE_CHECKING:
    from headway.gateway.book.shadow_board import ShadowFigures, ShadowState
    from headway.lab.shadow_feed import Feed
    from headway.lab.shadow_scaling import FleetAdviser

EPILOG = """Examples:

  headway shadow --url http://127.0.0.1:8000 --policies vllm                    # every minute, of the last five

  headway shadow --url http://127.0.0.1:8000 --policies sarathi,edf --window 600 --once --json

  headway serve MODEL --instances 2 --shadow vllm                               # on the dashboard and in /metrics

The requests that the server really had are served again, in this process, by the simulator: with the lengths that
their answers really had and with step times fitted to that server's own steps, once under its own policy and once
under each of POLICIES. Compare the simulated with one another. Where its own policy simulated is far from what was
seen, the report says that it cannot judge, and has no figures of POLICIES. The server only answers a question every
few seconds. It keeps its last ended requests alone (`headway serve --explain N`): where these reach back less than
twice the window, the report is of the later half of them. Ctrl-C ends it.
"""

FOLLOWED = "-"
"""In place of a URL: standard input has the URLs to poll; each line replaces the list before."""
_ASK_EVERY_S = 5.0
LEAST_WINDOW_S, _LEAST_EVERY_S = 10.0, 1.0
_NICENESS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowFlags:
    """Which servers, which policies, and how often to report."""

    url: Annotated[
        tuple[str, ...],
        Setting("Base URL of a server; repeatable. -: lines of URLs on standard input.", "URL"),
    ]
    policies: Annotated[str | None, Setting("Rows of the preset table.", "A,B,...")] = None
    scale: Annotated[
        str | None,
        Setting("Say also how many such servers are needed, all of one fleet and alike.", "MIN..MAX"),
    ] = None
    window: Annotated[float, Setting("Seconds of requests that a report judges.", "S")] = 300.0
    every: Annotated[float, Setting("Seconds between reports.", "S")] = 60.0
    once: Annotated[bool, Setting("Print one report of what is known now, then end.")] = False
    api_key: ApiKey = None
    as_json: Annotated[bool, Setting("Print a line of JSON for each report.", shown=Shown(flag="--json"))] = (
        False
    )


def shadow(flags: ShadowFlags) -> None:
    """Serve a running server's requests again under other policies, simulated, and report goodput and latency."""
    from headway.lab.grid import parse_policies
    from headway.lab.shadow_scaling import FleetAdviser
    from headway.policies.presets import find_preset
    from headway.routing.scaling import Bounds

    window, every = flags.window, flags.every
    if flags.policies is None and flags.scale is None:
        raise ConfigError("--policies is missing; add --policies A,B,..., --scale MIN..MAX, or both")
    names = () if flags.policies is None else parse_policies(flags.policies, "--policies")
    bounds = None if flags.scale is None else Bounds.parse(flags.scale, "--scale")
    for name in names:
        find_preset(name)
    if not (LEAST_WINDOW_S <= window < inf and _LEAST_EVERY_S <= every < inf):
        raise ConfigError(
            f"--window is {window:g} and --every {every:g}; accepted: {LEAST_WINDOW_S:g} s or more, and "
            f"{_LEAST_EVERY_S:g} s or more"
        )
    os.nice(_NICENESS)
    adviser = None if bounds is None else FleetAdviser(bounds, window)
    shadowing = _Shadowing(flags.url, names, window, flags.api_key, flags.as_json, adviser)
    asyncio.run(shadowing.run(None if flags.once else every))


class _Shadowing:
    """Polls each server every few seconds, and reports on those that answer. A server named twice counts once.

    Requests of a server that is no longer polled still count as demand while they are kept.
    """

    def __init__(
        self,
        urls: Sequence[str],
        policies: Sequence[str],
        window_s: float,
        api_key: str | None,
        as_json: bool,
        adviser: FleetAdviser | None,
    ) -> None:
        self._keep_s = 2 * window_s
        self._feeds: dict[str, Feed] = {}
        self._gone: list[Feed] = []
        self._follows = FOLLOWED in urls
        self._adviser = adviser
        self._ask_those([url for url in urls if url != FOLLOWED])
        self._silent: set[str] = set()
        self._policies = policies
        self._window_s = window_s
        self._api_key = api_key
        self._as_json = as_json

    def _ask_those(self, urls: Iterable[str]) -> None:
        """Poll these servers from now on."""
        from headway.http_client import root_of
        from headway.lab.shadow_feed import Feed

        before, since_s = self._feeds, time.monotonic() - self._keep_s
        self._feeds = {url: before.get(url) or Feed(self._keep_s) for url in map(root_of, urls)}
        gone = [*self._gone, *(feed for url, feed in before.items() if url not in self._feeds)]
        # A new list, since a report in another thread may be iterating over this one.
        self._gone = [feed for feed in gone if feed.heard_s >= since_s]

    async def _follow(self) -> None:
        """Poll what each line of standard input names, until the input ends."""
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
        )
        async for line in lines:
            self._ask_those(line.decode().split())

    async def run(self, every_s: float | None) -> None:
        """Report at an interval, or once. Raises UpstreamError if no server answers a single report."""
        from headway.http_client import open_session
        from headway.loadgen.queries import TIMEOUT_S

        if self._follows:
            self._following = asyncio.create_task(self._follow())
        async with open_session(self._api_key, TIMEOUT_S) as session:
            if every_s is None:
                await self._ask_all(session)
                if self._silent == self._feeds.keys():
                    raise UpstreamError(f"no server told a shadow anything, of {len(self._feeds)} asked")
                self._show(self._report())
                return
            said = ""
            while True:
                await self._ask_for(session, every_s)
                try:
                    self._show(await asyncio.to_thread(self._report))
                    said = ""
                except HeadwayError as error:
                    if said != f"{error}":
                        said = f"{error}"
                        typer.echo(f"no report yet: {said}", err=True)

    async def _ask_for(self, session: Any, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            await self._ask_all(session)
            await asyncio.sleep(min(_ASK_EVERY_S, left_s))

    async def _ask_all(self, session: Any) -> None:
        await asyncio.gather(*(self._ask_patiently(session, url) for url in self._feeds))

    async def _ask_patiently(self, session: Any, url: str) -> None:
        """Poll a server; skip one that does not answer until it does, and warn once."""
        try:
            await self._ask(session, url)
        except HeadwayError as error:
            if url not in self._silent:
                typer.echo(f"{url}: {error}", err=True)
            self._silent.add(url)
        else:
            self._silent.discard(url)

    async def _ask(self, session: Any, url: str) -> None:
        """Poll a server for news, unless the list of servers has changed meanwhile."""
        from headway.loadgen.queries import ask_window

        feed = self._feeds.get(url)
        if feed is None:
            return
        feed.take(await ask_window(session, url, feed.next), time.monotonic())

    def _report(self) -> ShadowState:
        from headway.lab.shadow import shadow_report

        now_s = time.monotonic()  # requests that arrive while the report is made are not in it
        feeds = [feed for url, feed in self._feeds.items() if url not in self._silent]
        report = shadow_report(feeds, self._policies, self._window_s, at=round(time.time(), 3))
        if self._adviser is not None:
            gone = [feed for feed in self._gone if feed.heard_s >= now_s - self._keep_s]
            report.advice = self._adviser.advise(feeds, gone, report, now_s)
        return report

    def _show(self, report: ShadowState) -> None:
        if self._as_json:
            typer.echo(msgspec.json.encode(report))
        else:
            typer.echo(f"{report_text(report)}\n")


def report_text(report: ShadowState) -> str:
    """One report as text."""
    from headway.lab.policy_choice import said_without_targets
    from headway.policies.presets import known_presets

    lines = [
        f"{report.requests:,} requests of the last {report.window_s:g} s; simulated step times are off by "
        f"{report.step_error:.1%} (median)",
    ]
    if report.cannot_judge is not None:
        lines.append(f"cannot judge other policies by this simulation: {report.cannot_judge}")
    lines += [
        f"{'':24}  {'goodput':>8}  {'mean JCT':>9}  {'mean TTFT':>9}  {'p99 TTFT':>9}  {'finished':>8}",
        *(_row(name, figures) for name, figures in report.figures.items()),
        *(f"{name}: {why}" for name, why in report.failed.items()),
    ]
    if all(each.goodput is None for each in report.figures.values()):
        lines += said_without_targets([name for name in report.figures if name in known_presets()])
    if report.assumed:
        lines.append(f"{report.assumed:,} did not finish live; their lengths are assumed")
    if report.known_s is not None:
        lines.append(
            f"only what came in the last {report.known_s:g} s is known, its first half leads up to the window: "
            "a server keeps its last ended requests (--explain N), a shadow that goes on asking comes to know more"
        )
    if report.missed:
        lines.append(
            f"{report.missed:,} ended unseen: the server keeps fewer than came between two questions"
        )
    if (advice := report.advice) is not None:
        why = f"; {advice.doubt}" if advice.doubt else ""
        lines.append(
            f"{advice.needed} instances needed ({advice.low} to {advice.high}), for {advice.growth:.2f} times the "
            f"demand{why}"
        )
    return "\n".join(lines)


def _row(name: str, figures: ShadowFigures) -> str:
    from headway.explain.text import seconds

    goodput = "-" if figures.goodput is None else f"{figures.goodput:.1%}"
    times = (figures.mean_jct_s, figures.mean_ttft_s, figures.p99_ttft_s)
    shown = "  ".join(f"{'-' if value is None else seconds(value):>9}" for value in times)
    return f"{name:24}  {goodput:>8}  {shown}  {figures.finished:>8,}"
