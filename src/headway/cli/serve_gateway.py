"""Runs a gateway and its instances, from the first launch to the end of the last process."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import typer
import uvloop

from headway.cli.serve_layout import Place
from headway.cli.serve_site import Site
from headway.cli.shadow import FOLLOWED
from headway.engine.servers.server_process import end_signals
from headway.errors import UpstreamError
from headway.gateway.app import Gateway, serve
from headway.gateway.book.shadow_board import ShadowBoard
from headway.gateway.fleet.fleet import Fleet
from headway.gateway.fleet.health import NO_FACTS
from headway.gateway.fleet.member import Condition, Member
from headway.gateway.fleet.models import differences
from headway.gateway.fleet.scaling import FleetScaling
from headway.gateway.http.client_limits import raise_file_limit
from headway.gateway.rebalance import rebalance
from headway.gateway.request.central_queue import CentralBatching
from headway.http_client import open_session
from headway.routing import build_router
from headway.routing.scaling import Bounds, Scaler
from headway.with_parent import signal_with_parent

if TYPE_CHECKING:
    from headway.engine.servers.instances_command import LocalInstances


EXIT_FAILED = 1
EXIT_INTERRUPTED = 128 + signal.SIGINT
STARTS = 2
"""Failed starts of one instance before the gateway gives up. A single failure may be a port that another process took.
"""

_POLL_S = 0.2
_LOG = logging.getLogger(__name__)


def run_gateway(site: Site) -> int:
    """Run until the gateway and everything it launched have ended; return the exit code for the shell.

    The first of the `end_signals` lets running requests finish for `drain_s`; a second one ends everything at once.
    Exit codes: 130 interrupted, 0 terminated, 1 if no instance could be started.
    """
    _show_progress()
    raise_file_limit()
    # Objects made at start-up live for ever. Garbage collection of them would stop every stream for tens of
    # milliseconds.
    gc.collect()
    gc.freeze()
    with (
        site.central.open() as batching,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        try:
            return runner.run(_Run(site, batching).run())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None


def members(site: Site) -> list[Member]:
    """The fleet's members: joined servers by URL, launched ones with a function that starts each.

    With an elastic number of instances, those that already run are kept: otherwise they would never be ended.
    """
    folder = None if site.local is None else site.local.folder
    running = {} if folder is None else folder.running()

    def member(index: int, place: Place) -> Member:
        if place.url is not None:
            return Member(place.name, place.pool, place.url)
        assert site.local is not None
        launch = partial(_launch, site.local, index)
        begins = site.layout.begins(place) or place.name in running
        first = Condition.STARTING if begins else Condition.PARKED
        limit = site.local.answer_limit
        return Member(place.name, place.pool, launch=launch, condition=first, answer_limit=limit)

    return [member(index, place) for index, place in enumerate(site.layout.places)]


def _launch(local: LocalInstances, index: int, member: Member) -> Any:
    return local.start(index, member.name, member.pool)


class _Run:
    """One run of the gateway: the signals received, and the order in which everything ends."""

    def __init__(self, site: Site, batching: CentralBatching | None) -> None:
        self._site = site
        self._batching = batching
        self._stop = asyncio.Event()
        self._at_once = asyncio.Event()
        self._received: list[int] = []
        self._failure = ""

    async def run(self) -> int:
        """Serve until a signal, or until nothing can be served; return the exit code."""
        for number in end_signals():
            asyncio.get_running_loop().add_signal_handler(number, self._hear, number)
        site = self._site
        async with (
            open_session(site.upstream_key, traced=False) as session,
            asyncio.TaskGroup() as group,
        ):
            folder = None if site.local is None else site.local.folder
            fleet = Fleet(members(site), session=session, options=site.fleet_options, kept_adapters=folder)
            scaling, router = self._scaling(fleet), build_router(site.layout.router)
            app = Gateway(fleet, router, site.options, time.monotonic, self._batching, scaling)
            app.bodies.start()
            serving = group.create_task(serve(app, *site.address, self._stop))
            others = [group.create_task(work) for work in self._others(fleet, app)]
            if scaling is not None and site.layout.elastic:
                others.append(group.create_task(scaling.run()))
            shadow = group.create_task(self._shadow(fleet, app))
            try:
                await _first(serving, group.create_task(self._stop.wait()))
                self._stop.set()
                await self._unless_at_once(serving)
            finally:
                shadow.cancel()  # before its instances go, whose end it would report as failures
                if scaling is not None:
                    scaling.close()
                await self._close(fleet)
                for task in (serving, *others):
                    task.cancel()
        if folder is not None and (pids := folder.running().values()):
            _LOG.info("instances go on; `kill %s` ends them", " ".join(map(str, pids)))
        return self._exit_code()

    def _others(self, fleet: Fleet, app: Gateway) -> list[Coroutine[Any, Any, None]]:
        """The tasks that run beside serving."""
        work = [fleet.run(), self._tell_when_ready(fleet), self._give_up_if_hopeless(fleet)]
        local = self._site.local
        if self._site.rebalances and local is not None:
            live = app.serving.accounts.live
            work.append(rebalance(fleet, lambda: live, clock=time.monotonic, prepare=local.prepare))
        return work

    def _scaling(self, fleet: Fleet) -> FleetScaling | None:
        bounds = self._site.layout.scale
        return None if bounds is None else FleetScaling(fleet, Scaler(bounds, self._site.scale_window_s))

    async def _shadow(self, fleet: Fleet, app: Gateway) -> None:
        bounds = self._site.layout.scale
        if self._site.shadows or bounds is not None:
            command = _command(self._site.shadows, bounds, self._site.scale_window_s)
            await shadow_beside(fleet, app.shadows, command, self._site.upstream_key, app.scale.scaling)

    def _hear(self, number: int) -> None:
        self._received.append(number)
        (self._at_once if self._stop.is_set() else self._stop).set()

    async def _tell_when_ready(self, fleet: Fleet) -> None:
        started_s = time.monotonic()
        await fleet.until_settled()
        ready = fleet.names()
        passed_s = time.monotonic() - started_s
        _LOG.info(
            "%d of %d instances ready after %.0f s: %s",
            len(ready),
            sum(member.condition is not Condition.PARKED for member in fleet.members),
            passed_s,
            self._site.url,
        )
        for difference in differences(fleet.members):
            _LOG.warning("%s", difference)

    async def _give_up_if_hopeless(self, fleet: Fleet) -> None:
        """Stop if all instances are launched here and none of them starts."""
        while fleet.facts is NO_FACTS:
            begun = [member for member in fleet.members if member.condition is not Condition.PARKED]
            if all(member.failures >= STARTS for member in begun):
                reasons = dict.fromkeys(member.last_loss for member in begun)
                self._failure = f"no instance could be started: {'; '.join(reasons)}"
                self._stop.set()
                return
            await asyncio.sleep(_POLL_S)

    async def _unless_at_once(self, task: asyncio.Task[None]) -> None:
        """Wait for a task, but only until a second signal."""
        insisted = asyncio.create_task(self._at_once.wait())
        await _first(task, insisted)
        insisted.cancel()

    async def _close(self, fleet: Fleet) -> None:
        closing = asyncio.create_task(fleet.close(at_once=self._at_once.is_set()))
        await self._unless_at_once(closing)
        if not closing.done():
            await fleet.close(at_once=True)
        await closing

    def _exit_code(self) -> int:
        if self._received:
            return EXIT_INTERRUPTED if self._received[0] == signal.SIGINT else 0
        if self._failure:
            typer.echo(f"error: {self._failure}", err=True)
        return EXIT_FAILED


async def _first(*tasks: asyncio.Task[Any]) -> None:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


def _show_progress() -> None:
    """Show the gateway's log on stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s headway: %(message)s", "%H:%M:%S"))
    log = logging.getLogger("headway")
    log.addHandler(handler)
    log.setLevel(logging.INFO)


# ---- a shadow beside the gateway -----------------------------------------------------------------------

_KEY = "OPENAI_API_KEY"
_LONGEST_LINE_BYTES = 1 << 20
_REPORTS_A_WINDOW = 6


async def shadow_beside(
    fleet: Fleet,
    board: ShadowBoard,
    command: Sequence[str],
    api_key: str | None,
    scaling: FleetScaling | None = None,
) -> None:
    """Run `headway shadow` on the fleet's instances, and put its reports on the board.

    Starts once each instance is up or down, and runs until cancelled. An instance that comes up later is added.
    `scaling` receives what a report advises. A shadow that ends, or cannot start, is not started again; serving
    continues without it.
    """
    await fleet.until_settled()

    def heard() -> None:
        if scaling is not None and board.report is not None and board.report.advice is not None:
            scaling.advised(board.report.advice)

    try:
        code = await _run(command, board, api_key, partial(_urls, fleet), heard)
        _LOG.warning("the shadow ended with code %d; serving goes on without it", code)
    except Exception:  # a failed shadow must not cancel the tasks that serve
        _LOG.exception("the shadow is given up; serving goes on without it")


def _urls(fleet: Fleet) -> list[str]:
    """URLs of the instances that answer, or soon may."""
    gone = (Condition.PARKED, Condition.STOPPED)
    return [member.url for member in fleet.members if member.url and member.condition not in gone]


async def _run(
    command: Sequence[str],
    board: ShadowBoard,
    api_key: str | None,
    urls: Callable[[], Sequence[str]],
    heard: Callable[[], None],
) -> int:
    """Put every line that the command prints on the board; return its exit code. The process ends with this task."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **({} if api_key is None else {_KEY: api_key})},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LONGEST_LINE_BYTES,
        # Ctrl-C in the terminal reaches the gateway alone, which then ends this process.
        start_new_session=True,
        # Without this, the shadow of a killed gateway would poll for ever.
        preexec_fn=partial(signal_with_parent, signal.SIGTERM),
    )
    telling = asyncio.create_task(_tell(process.stdin, urls))
    try:
        assert process.stdout is not None
        async for line in process.stdout:
            try:
                board.take(line)
            except UpstreamError as error:
                _LOG.warning("%s", error)
            else:
                heard()
        return await process.wait()
    finally:
        telling.cancel()
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def _tell(stdin: asyncio.StreamWriter | None, urls: Callable[[], Sequence[str]]) -> None:
    """Write the URLs as a line whenever they change, until cancelled or until the reader is gone."""
    assert stdin is not None
    told: Sequence[str] = ()
    with suppress(ConnectionError):
        while True:
            if (now := urls()) != told:
                told = now
                stdin.write(f"{' '.join(now)}\n".encode())
                await stdin.drain()
            await asyncio.sleep(_POLL_S)


def _command(policies: Sequence[str], bounds: Bounds | None, window_s: float) -> list[str]:
    """The shadow's command: reports over five minutes, once a minute; shorter and more frequent ones for advice on
    scaling.
    """
    command = [sys.executable, "-m", "headway.cli", "shadow", "--json", "--url", FOLLOWED]
    if policies:
        command += ["--policies", ",".join(policies)]
    if bounds is not None:
        times = ["--window", f"{window_s:g}", "--every", f"{window_s / _REPORTS_A_WINDOW:g}"]
        command += ["--scale", f"{bounds.floor}..{bounds.ceiling}", *times]
    return command
