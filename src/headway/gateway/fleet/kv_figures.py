"""KV memory use and prefix cache hits of each instance, by the engines' own metrics."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from headway.gateway.fleet.fleet import Fleet
from headway.gateway.fleet.health import read_metrics
from headway.gateway.fleet.member import Member

ASK_EVERY_S = 5.0
WATCHED_S = 15.0
"""Engines are polled only this long after the last look, since metrics cost a server milliseconds."""

_TIMEOUT_S = 2.0
_FIGURE = re.compile(
    rb"^vllm:(kv_cache_usage_perc|prefix_cache_queries_total|prefix_cache_hits_total)(?:\{[^\n]*\})? (\S+)$",
    re.M,
)


@dataclass(frozen=True, slots=True)
class KvFigures:
    """Shares of 1: KV blocks `used` now, and prompt tokens recently `found` in the cache.

    Either is None if an engine does not report it.
    """

    used: float | None = None
    found: float | None = None


NO_FIGURES = KvFigures()


class KvWatch:
    """Polls the instances every few seconds while someone looks at the figures (`of`)."""

    def __init__(self, fleet: Fleet, clock: Callable[[], float] = time.monotonic) -> None:
        self._fleet = fleet
        self._clock = clock
        self._looked_s = float("-inf")
        self._figures: dict[str, KvFigures] = {}
        self._lookups: dict[str, tuple[float, float]] = {}

    def of(self, name: str) -> KvFigures:
        """The last figures of an instance; counts as a look."""
        self._looked_s = self._clock()
        return self._figures.get(name, NO_FIGURES)

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            if self._clock() - self._looked_s < WATCHED_S:
                await self.ask()
            await asyncio.sleep(ASK_EVERY_S)

    async def ask(self) -> None:
        """Poll all instances that can serve, concurrently; one that does not answer has no figures."""
        members = [self._fleet.member(name) for name in self._fleet.names()]
        told = await asyncio.gather(*map(self._told, members))
        pairs = zip(members, told, strict=True)
        self._figures = {member.name: self._read(member.name, metrics) for member, metrics in pairs}

    async def _told(self, member: Member) -> bytes:
        return await read_metrics(self._fleet.session, member.url, _TIMEOUT_S)

    def _read(self, name: str, metrics: bytes) -> KvFigures:
        """The figures in an answer: the mean use over its engines, and the lookups since the answer before."""
        told: dict[bytes, list[float]] = {}
        for what, value in _FIGURE.findall(metrics):
            with suppress(ValueError):
                told.setdefault(what, []).append(float(value))
        uses = told.get(b"kv_cache_usage_perc")
        asked, found = (sum(told.get(b"prefix_cache_%b_total" % what, [])) for what in (b"queries", b"hits"))
        before = self._lookups.get(name, (0.0, 0.0))
        if asked < before[0]:  # a new engine has started since
            before = (0.0, 0.0)
        self._lookups[name] = (asked, found)
        grown = asked - before[0]
        last = self._figures.get(name, NO_FIGURES).found if asked else None
        return KvFigures(
            used=sum(uses) / len(uses) if uses else None,
            found=(found - before[1]) / grown if grown > 0 else last,
        )
