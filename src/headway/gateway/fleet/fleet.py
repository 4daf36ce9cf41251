"""The instances behind the gateway: which there are, which can serve, and what is told when one is lost."""

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

    `run` launches and watches them until it is cancelled; `close`, before that, ends what was launched. All of it
    happens on one event loop and in its thread, where launching must stay: Linux ends a server whose parent ended when
    the thread that started it does. `adapters` are loaded again by what is launched anew.
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
        """Raises ConfigError for two instances of one name, or one that is neither launched nor joined by a URL."""
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
        """The instances that may be sent requests, in the order of `members`. Cost: O(n), n instances.

        Those that are READY; if none is, those that were and did not answer in time: where all are that busy, a slow
        answer is better than none. With a `model`, those of them that serve it, with room for so many `tokens` if one
        has. A model that no instance ever named may be asked for anywhere: some load one when it is asked for.
        """
        asked = list(self._supervisors.items())
        if model and any(model in supervisor.member.last_facts.limits for _, supervisor in asked):
            having = [each for each in asked if each[1].member.facts.takes(model, 0)]
            roomy = [each for each in having if each[1].member.facts.takes(model, tokens)]
            return _that_serve(roomy) or _that_serve(having)
        return _that_serve(asked)

    def has(self, name: str) -> bool:
        """Whether there is an instance of that name, with what it held, or coming back."""
        supervisor = self._supervisors.get(name)
        return supervisor is not None and supervisor.member.condition is not Condition.PARKED

    def member(self, name: str) -> Member:
        """The instance of that name; KeyError if there is none (any more)."""
        return self._supervisors[name].member

    @property
    def facts(self) -> Facts:
        """What the first READY instance says of itself; while there is none, what was said last."""
        for supervisor in self._supervisors.values():
            if supervisor.member.condition is Condition.READY:
                self._facts = supervisor.member.facts
                break
        return self._facts

    @property
    def is_mixed(self) -> bool:
        """Whether instances serve different models, as far as they have said. O(n)."""
        known = {frozenset(member.last_facts.limits) for member in self.members} - {frozenset()}
        return len(known) > 1

    @property
    def models(self) -> bytes:
        """The answer to `/v1/models` for all READY instances; while there is none, what was said last."""
        ready = [member.facts for member in self.members if member.condition is Condition.READY]
        return merged_models(ready or [self.facts])

    def suspect(self, name: str) -> None:
        """A request saw its connection break: look at the instance now."""
        if name in self._supervisors:
            self._supervisors[name].suspect()

    def garbage(self, name: str) -> None:
        """An answer was none, to a request that another instance served: see `FleetOptions.garbage_in_a_row`."""
        if name in self._supervisors:
            self._supervisors[name].garbage()

    def learn_again(self, name: str) -> None:
        """An instance was changed: ask it anew what it says of itself, such as its models."""
        if name in self._supervisors:
            self._supervisors[name].learn_again()

    async def run(self) -> None:
        """Launch and watch the instances until they are closed."""
        async with probing_session(self.session) as session, asyncio.TaskGroup() as group:
            for supervisor in self._supervisors.values():
                group.create_task(supervisor.run(session))

    async def until_settled(self) -> None:
        """Return once every instance has been READY, or has failed to be."""
        while any(member.condition is Condition.STARTING for member in self.members):
            await asyncio.sleep(_POLL_S)

    async def drain(self, name: str) -> bool:
        """Send nothing new there and wait for what runs there, `drain_s` at most; whether all of it came to its end."""
        await self._emptied(name, "no new requests", self._clock() + self.options.drain_s)
        return not self.member(name).in_flight

    async def park(self, name: str) -> None:
        """Send nothing new to a launched instance, and end its process once all that runs there has ended.

        However long that takes, no request there is cut off. `wake`, before that, has the instance serve on.
        """
        served = self.member(name).condition in (Condition.READY, Condition.UNWELL)
        await self._emptied(name, "fewer instances are needed", inf)
        if not served or self.member(name).condition is Condition.DRAINING:
            await self._supervisors[name].park()

    async def _emptied(self, name: str, reason: str, deadline_s: float) -> None:
        """Drain an instance, as long as it is not taken back."""
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

        Returns when its new process was launched. Raises ConfigError for one that was joined, or a name that is taken.
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
        """End what was launched and wait for it; let go of what was joined or is kept. `at_once`: without asking."""
        await asyncio.gather(
            *(supervisor.close(at_once=at_once) for supervisor in self._supervisors.values())
        )


def _that_serve(supervisors: Sequence[tuple[str, Supervisor]]) -> tuple[str, ...]:
    """The names of those that are READY, else of those that are slow."""
    ready = [name for name, each in supervisors if each.member.condition is Condition.READY]
    return tuple(ready or [name for name, each in supervisors if each.is_slow])
