"""The instances behind the gateway: which exist, which can serve, and what happens when one is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from math import inf

import aiohttp

from headway.errors import ConfigError
from headway.gateway.fleet.adapters import Adapters, KeptAdapters
from headway.gateway.fleet.health import NO_FACTS, Facts, probing_session
from headway.gateway.fleet.member import Condition, Member
from headway.gateway.fleet.models import merged_models
from headway.gateway.fleet.supervisor import FleetOptions, Supervisor

_POLL_S = 0.05
_DEFAULTS = FleetOptions()


class Fleet:
    """Instances by name, in a fixed order.

    `run` launches and watches them until it is cancelled; `close`, called before that, ends what was launched.
    Everything runs on one event loop, and launches must stay in its thread: Linux ends a server when the thread that
    started it ends. Relaunched instances load `adapters` again.
    """

    def __init__(
        self,
        members: Iterable[Member],
        *,
        session: aiohttp.ClientSession,
        options: FleetOptions = _DEFAULTS,
        clock: Callable[[], float] = time.monotonic,
        kept_adapters: KeptAdapters | None = None,
    ) -> None:
        """Raises ConfigError for a repeated name, or an instance that is neither launched nor joined by a URL."""
        self.options = options
        self.session = session
        self._clock = clock
        self._facts = NO_FACTS
        self.adapters = Adapters(kept_adapters)
        self._supervisors: dict[str, Supervisor] = {}
        for member in members:
            if member.name in self._supervisors:
                raise ConfigError(f"two instances are named {member.name!r}; accepted: each name once")
            if member.launch is None and not member.url:
                raise ConfigError(f"instance {member.name!r} has no URL; accepted: one to launch, or a URL")
            self._supervisors[member.name] = Supervisor(member, options, clock, self.adapters)

    @property
    def members(self) -> tuple[Member, ...]:
        """All instances, whatever their condition."""
        return tuple(supervisor.member for supervisor in self._supervisors.values())

    def names(self, model: str = "", tokens: int = 0) -> tuple[str, ...]:
        """The instances that may get requests, in the order of `members`. O(n), n instances.

        These are the READY ones; if there is none, those that only failed to answer in time: if all are that busy, a
        slow answer is better than none. With a `model`, only those that serve it, with room for `tokens` if there are
        any. A model that no instance has named may be requested anywhere, since some load models on request.
        """
        asked = list(self._supervisors.items())
        if model and any(model in supervisor.member.last_facts.limits for _, supervisor in asked):
            having = [each for each in asked if each[1].member.facts.takes(model, 0)]
            roomy = [each for each in having if each[1].member.facts.takes(model, tokens)]
            return _that_serve(roomy) or _that_serve(having)
        return _that_serve(asked)

    def has(self, name: str) -> bool:
        """Whether there is an instance of that name that still has its state, or will be back."""
        supervisor = self._supervisors.get(name)
        return supervisor is not None and supervisor.member.condition is not Condition.PARKED

    def member(self, name: str) -> Member:
        """The instance of that name. Raises KeyError if there is none (any more)."""
        return self._supervisors[name].member

    @property
    def facts(self) -> Facts:
        """What the first READY instance says about itself; without one, what was said last."""
        for supervisor in self._supervisors.values():
            if supervisor.member.condition is Condition.READY:
                self._facts = supervisor.member.facts
                break
        return self._facts

    @property
    def is_mixed(self) -> bool:
        """Whether instances serve different models, as far as known. O(n)."""
        known = {frozenset(member.last_facts.limits) for member in self.members} - {frozenset()}
        return len(known) > 1

    @property
    def models(self) -> bytes:
        """The answer to `/v1/models` for all READY instances; without any, the last answer."""
        ready = [member.facts for member in self.members if member.condition is Condition.READY]
        return merged_models(ready or [self.facts])

    def suspect(self, name: str) -> None:
        """A request's connection broke: check the instance now."""
        if name in self._supervisors:
            self._supervisors[name].suspect()

    def garbage(self, name: str) -> None:
        """An answer was garbage, and another instance served the request: see `FleetOptions.garbage_in_a_row`."""
        if name in self._supervisors:
            self._supervisors[name].garbage()

    def learn_again(self, name: str) -> None:
        """An instance was changed: ask again what it says about itself, such as its models."""
        if name in self._supervisors:
            self._supervisors[name].learn_again()

    async def run(self) -> None:
        """Launch and watch the instances until they are closed."""
        async with probing_session(self.session) as session, asyncio.TaskGroup() as group:
            for supervisor in self._supervisors.values():
                group.create_task(supervisor.run(session))

    async def until_settled(self) -> None:
        """Wait until every instance has been READY or has failed to start."""
        while any(member.condition is Condition.STARTING for member in self.members):
            await asyncio.sleep(_POLL_S)

    async def drain(self, name: str) -> bool:
        """Send an instance nothing new and wait up to `drain_s` for its requests; return whether all of them ended."""
        await self._emptied(name, "no new requests", self._clock() + self.options.drain_s)
        return not self.member(name).in_flight

    async def park(self, name: str) -> None:
        """Send a launched instance nothing new, and end its process after its last request.

        However long that takes, no request there is cut off. Until then `wake` lets the instance serve on.
        """
        served = self.member(name).condition in (Condition.READY, Condition.UNWELL)
        await self._emptied(name, "fewer instances are needed", inf)
        if not served or self.member(name).condition is Condition.DRAINING:
            await self._supervisors[name].park()

    async def _emptied(self, name: str, reason: str, deadline_s: float) -> None:
        """Drain an instance, unless it is taken back."""
        supervisor = self._supervisors[name]
        member = supervisor.member
        if member.condition in (Condition.READY, Condition.UNWELL):
            supervisor.become(Condition.DRAINING, reason)
        while member.in_flight and member.condition is Condition.DRAINING and self._clock() < deadline_s:
            await asyncio.sleep(_POLL_S)

    def wake(self, name: str) -> None:
        """Launch a parked instance, or send a draining one requests again."""
        self._supervisors[name].wake()

    async def recast(self, name: str, new_name: str, pool: str) -> None:
        """Drain a launched instance and launch it again under another name, in another pool.

        Returns when its new process was launched. Raises ConfigError for a joined instance, or a name that is taken.
        """
        supervisor = self._supervisors[name]
        if supervisor.member.process is None:
            raise ConfigError(f"{name} was not launched here; accepted: an instance that was")
        if new_name in self._supervisors:
            raise ConfigError(f"there is an instance {new_name!r} already; accepted: a name that is free")
        await self.drain(name)
        self._supervisors = {
            (new_name if key == name else key): known for key, known in self._supervisors.items()
        }
        await supervisor.recast(new_name, pool)

    async def close(self, *, at_once: bool = False) -> None:
        """End what was launched and wait for it; release what was joined or is kept. `at_once`: by force."""
        await asyncio.gather(
            *(supervisor.close(at_once=at_once) for supervisor in self._supervisors.values())
        )


def _that_serve(supervisors: Sequence[tuple[str, Supervisor]]) -> tuple[str, ...]:
    """The names of the READY instances, else of the slow ones."""
    ready = [name for name, each in supervisors if each.member.condition is Condition.READY]
    return tuple(ready or [name for name, each in supervisors if each.is_slow])
