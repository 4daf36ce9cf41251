"""One stream of events, put to the simulated cluster and to a running gateway: where each sends every request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import aiohttp

from headway.core.job import PREFIX_BLOCK_TOKENS, Job
from headway.core.record import Outcome, Record
from headway.gateway.app import Gateway
from headway.gateway.fleet.fleet import Fleet
from headway.gateway.fleet.member import Member
from headway.gateway.http.options import GatewayOptions
from headway.http_client import open_session
from headway.routing import Router, build_router
from headway.routing.pools import pool_of
from headway.sim.clock import EventLoop, Phase
from headway.sim.cluster import Cluster
from headway.sim.instance import Instance
from headway.traces import TraceRequest
from tests.gateway.fleets import QUICK, until
from tests.gateway.loopback import serving
from tests.loadgen.conftest import FakeServer, Stream
from tests.loadgen.conftest import running as fake_server

Placed = list[tuple[str, str]]
"""Each request and where it came, in order; once more for each time it was handed off."""

MAX_TOKENS = 32


class What(Enum):
    """An event in the life of a request."""

    ARRIVES = "it comes"
    STARTS = "its first token is out"
    GIVEN_UP = "its instance gives it up unstarted"
    ENDS = "it ends: finished if it had started, else dropped"


@dataclass(frozen=True)
class Event:
    what: What
    id: str
    own_tokens: int = 1
    blocks: tuple[int, ...] = ()
    """What its prompt begins with, 512 tokens each."""

    @property
    def prompt_tokens(self) -> int:
        return len(self.blocks) * PREFIX_BLOCK_TOKENS + self.own_tokens

    @property
    def prompt(self) -> list[int]:
        """Token ids of four digits, which take six bytes each in a body."""
        shared = [1000 + block for block in self.blocks for _ in range(PREFIX_BLOCK_TOKENS)]
        return shared + [7] * self.own_tokens


def made_events(seed: int, count: int, talks: int = 0) -> list[Event]:
    """Events that make sense: `count` requests, each begun and ended once, given up at most once and only unstarted.

    Requests are numbered as they come, which is what the gateway calls them too. Each is a turn of one of so many
    `talks`, a block longer than the turn before; without any, none begins as another.
    """
    draw, events = Random(seed), []
    waiting: list[str] = []
    started: list[str] = []
    moved: set[str] = set()
    coming = [str(number) for number in range(count)]
    while coming or waiting or started:
        movable = [each for each in waiting if each not in moved]
        choices = {What.ARRIVES: coming[:1], What.STARTS: waiting, What.GIVEN_UP: movable}
        choices[What.ENDS] = [*started, *waiting[:1]]
        what = draw.choice([what for what, ids in choices.items() if ids])
        id_ = draw.choice(choices[what])
        own_tokens, talk = draw.randrange(1, 200), int(id_) % talks if talks else 0
        blocks = range(100 * talk, 100 * talk + int(id_) // talks) if talks else ()
        events.append(Event(what, id_, own_tokens, tuple(blocks)))
        if what is What.ARRIVES:
            waiting.append(coming.pop(0))
        elif what is What.STARTS:
            waiting.remove(id_)
            started.append(id_)
        elif what is What.GIVEN_UP:
            moved.add(id_)
        else:
            (started if id_ in started else waiting).remove(id_)
    return events


# ---- the simulated cluster -----------------------------------------------------------------------------


@dataclass
class ScriptedInstance:
    """Stands where the cluster puts instances: it takes what arrives, and does nothing of its own."""

    engine: SimpleNamespace
    placed: Placed
    jobs: dict[str, Job]

    def arrive(self, job: Job, output_tokens: int, shared: Sequence[object]) -> None:
        self.jobs[job.id] = job
        self.placed.append((job.id, self.engine.name))


def simulated(events: Sequence[Event], router: str, names: Sequence[str]) -> Placed:
    """Where the cluster sends the requests, with an event a second."""
    loop, placed, jobs = EventLoop(), Placed(), dict[str, Job]()
    cluster = Cluster(loop, build_router(router), default_max_output_tokens=MAX_TOKENS)
    for name in names:
        engine = SimpleNamespace(name=name, limits=SimpleNamespace(block_size=16))
        cluster.add(cast(Instance, ScriptedInstance(engine, placed, jobs)))

    def happen(event: Event) -> None:
        job = jobs[event.id]
        if event.what is What.STARTS:
            job.num_output_tokens = 1
            cluster.started(job)
        else:
            cluster.ended(_record(event, job, loop.now_s))

    requests = []
    for time_s, event in enumerate(events):
        if event.what is What.ARRIVES:
            request = TraceRequest(
                event.id, float(time_s), event.prompt_tokens, 1, prefix_blocks=event.blocks
            )
            requests.append(request)
        else:
            loop.at(float(time_s), Phase.OUTPUT, partial(happen, event))
    cluster.run(requests)
    return placed


def _record(event: Event, job: Job, now_s: float) -> Record:
    fate = Outcome.FINISHED if job.num_output_tokens else Outcome.EXPIRED
    outcome = Outcome.HANDED_OFF if event.what is What.GIVEN_UP else fate
    return Record(
        id=job.id,
        arrival_s=job.arrival_s,
        prompt_tokens=job.num_prompt_tokens,
        outcome=outcome,
        finished_s=now_s,
    )


# ---- the gateway ---------------------------------------------------------------------------------------


@dataclass
class Told:
    """A router that counts what it is told, so that the next event comes after the last was taken in."""

    router: Router
    started_jobs: int = 0
    ended_jobs: int = 0

    @property
    def hands_off(self) -> bool:
        return self.router.hands_off

    def route(self, job: Job, instances: Sequence[str]) -> str:
        return self.router.route(job, instances)

    def started(self, job: Job) -> None:
        self.router.started(job)
        self.started_jobs += 1

    def hand_off(self, job: Job, instances: Sequence[str]) -> str | None:
        return self.router.hand_off(job, instances)

    def waiting_elsewhere(self, instance: str, instances: Sequence[str]) -> Sequence[int]:
        return self.router.waiting_elsewhere(instance, instances)

    def end(self, job: Job) -> None:
        self.router.end(job)
        self.ended_jobs += 1

    def lost(self, instance: str) -> None:
        self.router.lost(instance)


@dataclass
class Script:
    """The upstreams' actions for each request, told one event at a time."""

    placed: Placed = field(default_factory=list)
    orders: dict[str, asyncio.Queue[What]] = field(default_factory=dict)

    async def serve(self, name: str, stream: Stream) -> None:
        """One request at one instance, from its coming to its leaving."""
        id_, begun = stream.body["user"], False
        orders = self.orders[id_] = asyncio.Queue[What]()
        self.placed.append((id_, name))
        while True:
            what = await orders.get()
            if what is What.STARTS:
                begun = True
                await stream.token()
            elif what is What.GIVEN_UP:
                return await stream.end("abort", "headway:handed_off")
            else:
                return await (stream.end() if begun else stream.end("abort", "headway:expired"))


@asynccontextmanager
async def upstreams(script: Script, names: Sequence[str]) -> AsyncIterator[list[Member]]:
    """Small servers that do as the script says, as members that were joined."""

    def take_part(server: FakeServer, name: str) -> Member:
        server.answer = lambda stream: script.serve(name, stream)
        server.metrics_text = "# Headway's\nheadway_steps_total 1.0\n"
        return Member(name, pool_of(name), server.url)

    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(fake_server()) for _ in names]
        yield [take_part(server, name) for server, name in zip(servers, names, strict=True)]


async def routed(events: Sequence[Event], router: str, names: Sequence[str]) -> Placed:
    """Where a gateway sends the requests, each event after all parts have taken in the one before."""
    script, told = Script(), Told(build_router(router))
    async with AsyncExitStack() as stack:
        members = await stack.enter_async_context(upstreams(script, names))
        session = await stack.enter_async_context(open_session())
        fleet = Fleet(members, session=session, options=QUICK)
        watching = asyncio.create_task(fleet.run())
        stack.callback(watching.cancel)
        await until(lambda: len(fleet.names()) == len(names))
        url = await stack.enter_async_context(serving(Gateway(fleet, told, GatewayOptions())))
        clients = [
            task for event in events if (task := await _happen(event, script, told, session, url)) is not None
        ]
        await asyncio.gather(*clients)
    return script.placed


async def _happen(
    event: Event, script: Script, told: Told, session: aiohttp.ClientSession, url: str
) -> asyncio.Task[Any] | None:
    """Let one thing happen, and wait until it has; the client's own task where a request comes."""
    placed, started, ended = len(script.placed), told.started_jobs, told.ended_jobs
    task = None
    if event.what is What.ARRIVES:
        task = asyncio.create_task(_ask(event, session, url))
    else:
        script.orders[event.id].put_nowait(event.what)
    if event.what is What.STARTS:
        await until(lambda: told.started_jobs > started)
    elif event.what is What.ENDS:
        await until(lambda: told.ended_jobs > ended)
    else:
        await until(lambda: len(script.placed) > placed)
    return task


async def _ask(event: Event, session: aiohttp.ClientSession, url: str) -> None:
    body = {
        "model": "fake",
        "prompt": event.prompt,
        "max_tokens": MAX_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
        "user": event.id,
    }
    async with session.post(f"{url}/v1/completions", json=body) as response:
        await response.read()
