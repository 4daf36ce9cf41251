"""Keeps as many instances of this machine running as are needed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from headway.gateway.fleet.fleet import Fleet
from headway.gateway.fleet.member import Condition, Member
from headway.routing.scaling import Advice, Recommendation, Scaler

STALE_S = 120.0
"""Advice older than this, and than the window it judges, is ignored: the fleet stays as it is."""
_LOOK_S = 1.0
_WANTED = (Condition.STARTING, Condition.READY, Condition.UNWELL, Condition.LOST)
_LOG = logging.getLogger(__name__)


class FleetScaling:
    """Decides the number of instances from a shadow's advice; `run` starts and drains those launched here.

    Without recent advice the recommendation is the current number.
    """

    def __init__(self, fleet: Fleet, scaler: Scaler, clock: Callable[[], float] = time.monotonic) -> None:
        self.bounds = scaler.bounds
        self.advice: Advice | None = None
        self._fleet = fleet
        self._scaler = scaler
        self._stale_s = max(STALE_S, scaler.window_s)
        self._clock = clock
        self._advised_s = 0.0
        self._decided: Recommendation | None = None
        self._parking: dict[str, asyncio.Task[None]] = {}

    @property
    def current(self) -> int:
        """Instances that serve or start, without those that drain."""
        return sum(member.condition in _WANTED for member in self._fleet.members)

    @property
    def recommendation(self) -> Recommendation:
        """The recommended number of instances, and why."""
        if self._decided is None or self._clock() - self._advised_s > self._stale_s:
            return self._scaler.decide(self._clock(), self.current, None)
        return self._decided

    def advised(self, advice: Advice) -> None:
        """A shadow has replayed the last minutes."""
        self.advice, self._advised_s = advice, self._clock()
        self._decided = self._scaler.decide(self._advised_s, self.current, advice)

    async def run(self) -> None:
        """Follow the recommendation until cancelled."""
        while True:
            self._change(self.recommendation.instances - self.current)
            await asyncio.sleep(_LOOK_S)

    def close(self) -> None:
        """Stop waiting for draining instances: all of them end."""
        for task in self._parking.values():
            task.cancel()

    def _change(self, more: int) -> None:
        """Start or drain instances; a process that is still ending finishes first.

        An instance that does not serve goes first, else the last one: so gateways that share instances keep the same
        ones.
        """
        members = self._fleet.members
        if more > 0:
            idle = [each for each in members if each.condition is Condition.DRAINING]
            idle += [
                each for each in members if each.condition is Condition.PARKED and not self._is_ending(each)
            ]
            for member in idle[:more]:
                _LOG.info("%s is needed: %s", member.name, self.recommendation.reason)
                self._fleet.wake(member.name)
        elif more < 0:
            wanted = [each for each in reversed(members) if each.condition in _WANTED]
            for member in sorted(wanted, key=lambda each: each.condition is Condition.READY)[:-more]:
                self._park(member)

    def _park(self, member: Member) -> None:
        task = asyncio.create_task(self._fleet.park(member.name))
        self._parking[member.name] = task

    def _is_ending(self, member: Member) -> bool:
        task = self._parking.get(member.name)
        return task is not None and not task.done()
