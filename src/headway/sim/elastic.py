"""A simulated fleet whose number of instances changes while it serves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from headway.core.record import Record
from headway.sim.clock import EventLoop, Phase

if TYPE_CHECKING:
    from headway.sim.cluster import Cluster

Put = Callable[[str, int], None]
"""Puts a new instance of this name behind the router; the number seeds its clock."""


class _Stage(IntEnum):
    STARTING = 0
    READY = 1
    DRAINING = 2
    GONE = 3


@dataclass(slots=True)
class _Life:
    """One instance from launch to end."""

    number: int
    begun_s: float
    stage: _Stage = _Stage.STARTING
    ended_s: float = inf

    @property
    def name(self) -> str:
        return str(self.number)


@dataclass(frozen=True, slots=True)
class FleetSeen:
    """What the decision is based on: instances that serve or start, those that serve, and started and unstarted
    requests.
    """

    now_s: float
    instances: int
    ready: int
    live: int
    waiting: int


class ElasticFleet:
    """Decides every `every_s` how many instances there should be, and starts or drains some.

    An instance serves `start_s` after its launch. A draining one gets no new requests, and ends with its last request
    unless it is wanted again. Among the candidates the one with the fewest requests drains.
    """

    def __init__(
        self, first: int, decide: Callable[[FleetSeen], int], *, every_s: float, start_s: float
    ) -> None:
        self._first = first
        self._decide = decide
        self._every_s = every_s
        self._start_s = start_s
        self._lives: list[_Life] = []

    def begin(self, loop: EventLoop, cluster: Cluster, put: Put) -> None:
        """Start the first instances, which serve at once."""
        self._loop, self._cluster, self._put = loop, cluster, put
        for _ in range(self._first):
            self._serve(self._launch())
        loop.at(self._every_s, Phase.SCALE, self._look)

    def ended(self, record: Record) -> None:
        """A request ended: a draining instance may be empty now."""
        for life in self._in(_Stage.DRAINING):
            if not self._cluster.live(life.name):
                self._end(life)

    def instance_s(self, until_s: float) -> float:
        """Total seconds of all instances from launch to end, up to a given time."""
        return sum(max(0.0, min(life.ended_s, until_s) - life.begun_s) for life in self._lives)

    def _in(self, *stages: _Stage) -> list[_Life]:
        return [life for life in self._lives if life.stage in stages]

    def _look(self) -> None:
        if self._cluster.is_over or self._loop.next_s == inf:
            return  # all requests have ended, or no decision could help
        ready, starting = self._in(_Stage.READY), self._in(_Stage.STARTING)
        live = sum(self._cluster.live(life.name) for life in ready)
        waiting = sum(self._cluster.waiting(life.name) for life in ready)
        seen = FleetSeen(self._loop.now_s, len(ready) + len(starting), len(ready), live, waiting)
        self._change(self._decide(seen) - seen.instances)
        self._loop.at(self._loop.now_s + self._every_s, Phase.SCALE, self._look)

    def _change(self, more: int) -> None:
        for life in self._in(_Stage.DRAINING)[: max(0, more)]:
            life.stage = _Stage.READY
            self._cluster.reopen(life.name)
            more -= 1
        for _ in range(more):
            life = self._launch()
            self._loop.at(self._loop.now_s + self._start_s, Phase.SCALE, partial(self._serve, life))
        for _ in range(-more):
            self._drain()

    def _launch(self) -> _Life:
        life = _Life(len(self._lives), self._loop.now_s)
        self._lives.append(life)
        return life

    def _serve(self, life: _Life) -> None:
        if life.stage is _Stage.STARTING:
            life.stage = _Stage.READY
            self._put(life.name, life.number)

    def _drain(self) -> None:
        """Remove one: the last that is starting, else the serving one with the fewest requests."""
        if starting := self._in(_Stage.STARTING):
            self._gone(starting[-1])
            return
        life = min(self._in(_Stage.READY), key=lambda life: (self._cluster.live(life.name), -life.number))
        life.stage = _Stage.DRAINING
        self._cluster.close(life.name)
        if not self._cluster.live(life.name):
            self._end(life)

    def _end(self, life: _Life) -> None:
        self._cluster.remove(life.name)
        self._gone(life)

    def _gone(self, life: _Life) -> None:
        life.stage, life.ended_s = _Stage.GONE, self._loop.now_s
