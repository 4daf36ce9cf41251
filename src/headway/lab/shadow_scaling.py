"""Determines how many instances a fleet needs, by replaying what its instances reported."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from math import inf

from msgspec.structs import replace

from headway.core.record import Outcome
from headway.gateway.book.shadow_board import ShadowState
from headway.lab.shadow import LIVE, fleet_system
from headway.lab.shadow_feed import Feed, Told
from headway.lab.shadow_replay import FleetReplay, policy_factory
from headway.routing.scaling import TOLERANCE, Advice, Adviser, Bounds

LEAD_S = 120.0
"""Seconds from a report to a new instance's first request: deciding, launching, and loading the model."""
BLOCKS_APART = 0.05
"""Relative difference allowed between instances' KV blocks: vLLM takes the memory that it finds free at each start."""


class FleetAdviser:
    """Advises on the number of instances; remembers arrivals to forecast demand and its growth."""

    def __init__(self, bounds: Bounds, window_s: float) -> None:
        self._bounds = bounds
        self._window_s = window_s
        self._adviser = Adviser(bounds, window_s, LEAD_S)
        self._counted_s = -inf

    def advise(
        self, feeds: Sequence[Feed], gone: Sequence[Feed], report: ShadowState, now_s: float
    ) -> Advice:
        """How many instances the last window needed; `feeds` still serve, `gone` served part of it.

        `now_s` is of the clock by which feeds were received. If the simulated live policy is far from what was
        observed, the advice is one more if targets are missed.
        """
        told = [one for number, feed in enumerate((*feeds, *gone)) for one in _on_one_clock(feed, number)]
        self._count(told, min((feed.heard_s for feed in feeds), default=now_s))
        doubt = report.cannot_judge or _difference(feeds)
        if doubt is not None:
            return self._by_what_was_seen(len(feeds), report, doubt)
        try:
            engine, system = fleet_system(feeds)
            replay = FleetReplay.of(told, now_s - self._window_s, policy_factory(engine, None), system)
            return self._adviser.advise(replay.served, now_s, len(feeds))
        except Exception as error:  # a policy may raise anything when it gets a whole fleet's requests
            doubt = f"the fleet cannot be replayed: {type(error).__name__}: {error}"
            return self._by_what_was_seen(len(feeds), report, doubt)

    def _count(self, told: Sequence[Told], until_s: float) -> None:
        """Count requests since the last report, as far as all instances have reported."""
        for one in told:
            if self._counted_s < one.arrival_s <= until_s and one.outcome is not Outcome.HANDED_OFF:
                self._adviser.demand.came(one.arrival_s)
        self._counted_s = max(self._counted_s, until_s)

    def _by_what_was_seen(self, serving: int, report: ShadowState, doubt: str) -> Advice:
        goodput = report.figures[LIVE].goodput
        is_short = goodput is not None and goodput < 1 - TOLERANCE
        needed = self._bounds.clamp(serving + is_short)
        return Advice(needed=needed, low=self._bounds.floor, high=self._bounds.ceiling, doubt=doubt)


def _on_one_clock(feed: Feed, number: int) -> list[Told]:
    """An instance's requests by the listener's clock, with unique ids, since two instances may have equal ones."""
    shift_s = feed.heard_s - feed.now_s
    return [
        replace(one, id=f"{number}/{one.id}", arrival_s=one.arrival_s + shift_s)
        for one in (*feed.ended, *feed.live)
    ]


def _difference(feeds: Sequence[Feed]) -> str | None:
    """How these instances differ; None if they are alike."""
    engines = [feed.engine for feed in feeds if feed.engine is not None]
    blocks = [engine.limits.num_blocks for engine in engines]
    most = max(blocks, default=0)
    sizes = [dataclasses.replace(engine.limits, num_blocks=most) for engine in engines]
    kinds = {
        (engine.policy, repr(engine.parts), repr(size)) for engine, size in zip(engines, sizes, strict=True)
    }
    apart = min(blocks, default=0) < (1 - BLOCKS_APART) * most
    return "instances have different policies or sizes" if len(kinds) > 1 or apart else None
