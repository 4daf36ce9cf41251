"""One instance's life: launched, health-checked, lost, and launched again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import aiohttp

from headway.errors import ConfigError, HeadwayError
from headway.gateway.fleet.adapters import Adapters
from headway.gateway.fleet.health import (
    NO_FACTS,
    HungEngineDetector,
    health_problem,
    read_facts,
    stopped_process,
)
from headway.gateway.fleet.member import LAST_CODE, Condition, LaunchedServer, Member

_LOG = logging.getLogger(__name__)
_LOOKS = 8
"""How often a pending health check is looked at within the time in which silence shows."""
_SERVING = (Condition.READY, Condition.UNWELL, Condition.DRAINING)
_RINGS_LATE = 1.25
"""If a timeout is noticed this many times late, this process was delayed, and the instance is not to blame."""


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """How instances are watched.

    Each is health-checked every `interval_s` and has `timeout_s` to answer. One miss makes it UNWELL, `misses` in a row
    make it LOST; this holds for a joined one from the start, as it may be down for good. A launched one may take
    `start_s` for its first answer, and is relaunched if it has been LOST for `frozen_s` although its process exists. An
    instance with requests and no step for `stalled_s` is unhealthy too. If it leaves a health check open for
    `silent_s`, with streams silent as long, it is frozen: LOST at once. `garbage_in_a_row` garbage answers without a
    good one between, to requests that others served, make it UNWELL for `garbage_pause_s`. Launches are `backoff_s`
    apart, doubled up to `longest_backoff_s`. A draining instance has `drain_s` for its requests. `keeps_instances`:
    launched instances outlive the fleet.
    """

    interval_s: float = 1.0
    timeout_s: float = 5.0
    misses: int = 3
    start_s: float = 3600.0
    frozen_s: float = 30.0
    stalled_s: float = 300.0
    silent_s: float = 2.0
    garbage_in_a_row: int = 3
    garbage_pause_s: float = 10.0
    backoff_s: float = 1.0
    longest_backoff_s: float = 60.0
    drain_s: float = 30.0
    keeps_instances: bool = False

    def __post_init__(self) -> None:
        seconds = (
            "interval_s",
            "timeout_s",
            "start_s",
            "frozen_s",
            "stalled_s",
            "silent_s",
            "garbage_pause_s",
            "backoff_s",
        )
        for name in seconds:
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError.of(name, getattr(self, name), "more than 0 seconds")
        for name in ("misses", "garbage_in_a_row"):
            if getattr(self, name) < 1:
                raise ConfigError.of(name, getattr(self, name), "1 or more")
        if not 0 <= self.drain_s < float("inf"):
            raise ConfigError.of("drain_s", self.drain_s, "0 or more seconds")
        if not self.backoff_s <= self.longest_backoff_s < float("inf"):
            raise ConfigError(
                f"longest_backoff_s is {self.longest_backoff_s}; accepted: backoff_s ({self.backoff_s}) or more"
            )


@dataclass(slots=True)
class Backoff:
    """Seconds to wait before the next launch: doubled each time up to a limit, and reset after a long run.

    `rest_s` is how long a server must have served for its next end to count as the first.
    """

    first_s: float = 1.0
    longest_s: float = 60.0
    rest_s: float = 60.0
    ends: int = 0

    def ended(self, served_s: float) -> float:
        """Seconds to wait after the end of a server that had served for `served_s`."""
        if served_s >= self.rest_s:
            self.ends = 0
        wait_s = min(self.longest_s, self.first_s * 2.0 ** min(self.ends, 60))
        self.ends += 1
        return wait_s


class Supervisor:
    """Keeps one member's condition right, and a launched one's process alive.

    Every change of condition goes through `become`. While the member is `parting` (stopped, or about to be relaunched
    in another role), health checks are ignored.
    """

    def __init__(
        self, member: Member, options: FleetOptions, clock: Callable[[], float], adapters: Adapters
    ) -> None:
        self.member = member
        self.closing = False
        self.parting = False
        self._is_late = False
        self._is_changed = False
        self._options = options
        self._clock = clock
        self._adapters = adapters
        self._backoff = Backoff(options.backoff_s, options.longest_backoff_s, options.longest_backoff_s)
        self._woken = asyncio.Event()
        self._stalls = HungEngineDetector(options.stalled_s, clock)
        self._misses = 0
        self._garbage = 0
        self._served_before = 0
        self._paused_until_s = 0.0
        self._ready_s: float | None = None
        member.since_s = clock()

    @property
    def is_slow(self) -> bool:
        """Whether the only problem is that it did not answer the last health check in time."""
        unwell = self.member.condition is Condition.UNWELL
        return unwell and self._is_late and self._clock() >= self._paused_until_s

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Launch it if it is ours to launch, and watch it until it is closed; health checks use `session`."""
        if self.member.launch is not None:
            await self._lives(session)
            return
        while not self.closing:
            await self._check(session)
            await self._rest()

    def suspect(self) -> None:
        """A request's connection broke: check now."""
        process = self.member.process
        code = None if process is None else process.poll()
        if code is not None and self.member.condition in _SERVING:
            self.lose(how_it_ended(code))
        self._woken.set()

    def learn_again(self) -> None:
        """What the instance said about itself may have changed: ask now."""
        self._is_changed = True
        self._woken.set()

    def garbage(self) -> None:
        """An answer was garbage. After enough of them without a good one, the instance gets nothing for a while."""
        served = self.member.served
        self._garbage = 1 if served != self._served_before else self._garbage + 1
        self._served_before = served
        if self._garbage < self._options.garbage_in_a_row:
            return
        self._garbage = 0
        self.member.failures += 1
        self._paused_until_s = self._clock() + self._options.garbage_pause_s
        if self.member.condition is Condition.READY:
            self.become(Condition.UNWELL, "it answers garbage")

    def lose(self, reason: str) -> None:
        """Cut off the requests there."""
        self.member.failures += not self.parting
        self.member.facts = NO_FACTS
        self.member.last_loss = reason
        self.become(Condition.LOST, reason)

    def become(self, condition: Condition, reason: str) -> None:
        """Change the condition; a stopped instance stays stopped."""
        member = self.member
        if member.condition is Condition.STOPPED:
            return
        if condition is not member.condition:
            member.since_s = self._clock()
            level = logging.WARNING if condition in (Condition.UNWELL, Condition.LOST) else logging.INFO
            _LOG.log(level, "%s is %s%s", member.name, condition, f": {reason}" if reason else "")
        member.condition, member.reason = condition, reason
        if condition in (Condition.LOST, Condition.PARKED, Condition.STOPPED):
            member.loss.set()
        elif condition is Condition.READY and member.loss.is_set():
            member.loss = asyncio.Event()

    async def recast(self, name: str, pool: str) -> None:
        """End its process and launch it again in another role; returns when that has begun."""
        member, process = self.member, self.member.process
        assert process is not None
        self.parting = True
        self.lose(f"it is started again as {name}")
        member.name, member.pool = name, pool
        await stop_process(process)
        while self.parting and not self.closing:
            await asyncio.sleep(self._options.interval_s / 10)

    async def park(self) -> None:
        """End its process until `wake`; its requests, if any, are cut off.

        The process stays if another gateway uses it.
        """
        member, process = self.member, self.member.process
        self.parting = process is not None
        member.facts = NO_FACTS
        self.become(Condition.PARKED, "fewer instances are needed")
        if process is None:
            return
        if await self._is_last_user(process):
            await stop_process(process)
            return
        _LOG.info("%s goes on: another gateway uses it", member.name)
        member.process = None
        self._woken.set()

    async def _is_last_user(self, process: LaunchedServer) -> bool:
        """Release the process as soon as that can be recorded, since other gateways rely on the record."""
        while True:
            try:
                return await asyncio.to_thread(process.let_go)
            except (OSError, HeadwayError) as error:
                _LOG.warning("%s cannot be let go yet: %s", self.member.name, error)
            await asyncio.sleep(self._options.longest_backoff_s)

    def wake(self) -> None:
        """Launch a parked instance; send a draining one requests again."""
        parked = self.member.condition is Condition.PARKED
        self.become(Condition.STARTING if parked else Condition.READY, "more instances are needed")
        self._woken.set()

    async def close(self, *, at_once: bool) -> None:
        """End what was launched and is not kept, gracefully or by force, and wait for it."""
        self.closing = True
        self.become(Condition.STOPPED, "the gateway ended")
        self._woken.set()
        if self.member.process is not None and not self._options.keeps_instances:
            await (kill_process if at_once else stop_process)(self.member.process)

    # ---- launched instances -------------------------------------------------------------------------------------

    async def _lives(self, session: aiohttp.ClientSession) -> None:
        """Run one process after the other."""
        while not self.closing:
            if self.member.condition is Condition.PARKED:
                await self._rest()
                continue
            self._ready_s = None
            try:
                await self._live(session)
            except (OSError, HeadwayError) as error:
                self.lose(f"cannot be launched: {error}")
            if self.closing or self.parting:
                continue
            served_s = 0.0 if self._ready_s is None else self._clock() - self._ready_s
            wait_s = self._backoff.ended(served_s)
            _LOG.warning("%s is launched again in %g s: %s", self.member.name, wait_s, self.member.reason)
            await asyncio.sleep(wait_s)
            self.member.restarts += 1

    async def _live(self, session: aiohttp.ClientSession) -> None:
        """Launch the instance and watch it until its process has ended. Raises the launcher's errors."""
        member = self.member
        assert member.launch is not None
        self.parting, self._misses = False, 0
        self._stalls.begin()
        process = member.launch(member)
        member.process, member.url, member.facts = process, process.url, NO_FACTS
        self.become(Condition.STARTING, f"launched as process {process.pid}")
        while (code := process.poll()) is None:
            await self._check(session)
            if member.process is not process:  # the process was released
                return
            if self._is_hopeless():
                silent_s = self._clock() - member.since_s
                self.lose(f"not well for {silent_s:.0f} s ({member.reason}), so it was killed")
                await kill_process(process)
                return
            await self._rest()
        if member.condition not in (Condition.LOST, Condition.PARKED):
            self.lose(how_it_ended(code))
        # Its requests are cut already; its children and its last output may take seconds.
        await asyncio.to_thread(process.wait)
        if not self.parting:
            member.reason = member.last_loss = how_it_ended(code, await asyncio.to_thread(process.last_words))

    def _is_hopeless(self) -> bool:
        """Whether a running process has been silent for so long that a new one is the better chance."""
        limits_s = {Condition.STARTING: self._options.start_s, Condition.LOST: self._options.frozen_s}
        limit_s = limits_s.get(self.member.condition, float("inf"))
        return self._clock() - self.member.since_s >= limit_s and not self.parting

    async def _rest(self) -> None:
        """Wait until the next check is due or requested."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), self._options.interval_s)
        self._woken.clear()

    # ---- health -------------------------------------------------------------------------------------------------

    async def _check(self, session: aiohttp.ClientSession) -> None:
        """Check its health, and set the condition accordingly."""
        member, timeout_s, late = self.member, self._options.timeout_s, False
        asked_s = self._clock()
        try:
            problem = await self._ask_health(session)
        except TimeoutError:
            if self._clock() - asked_s > timeout_s * _RINGS_LATE:
                return  # this process was delayed, and may not have seen an answer that is there
            problem, late = f"no answer to /health within {timeout_s:g} s", True
        self._is_late = late
        if problem is None:
            problem = await self._stalls.problem(session, member.url, timeout_s, busy=member.in_flight > 0)
        if problem is None and (member.facts is NO_FACTS or self._is_changed):
            problem = await self._learn_facts(session)
        if self.parting or member.ended:
            return
        if problem is None:
            self._is_well()
        else:
            self._is_ill(problem)

    async def _ask_health(self, session: aiohttp.ClientSession) -> str | None:
        """See `health_problem`. An instance seen to be frozen becomes LOST.

        Silence is counted in looks, so an event loop that was blocked itself sees one look and no frozen server.
        """
        member, looks = self.member, 0
        stopped = None if member.process is None else stopped_process(member.process.pid)
        if stopped is not None:
            return self._frozen(f"its process {stopped} is stopped")
        question = asyncio.ensure_future(health_problem(session, member.url, self._options.timeout_s))
        look_s = self._options.silent_s / _LOOKS
        try:
            while not (await asyncio.wait([question], timeout=look_s))[0]:
                looks += 1
                silent_s = self._clock() - member.heard_s
                if looks >= _LOOKS and member.streams and silent_s >= self._options.silent_s:
                    return self._frozen(
                        f"no answer to /health, and its streams are silent for {silent_s:.1f} s"
                    )
            return question.result()
        finally:
            question.cancel()

    def _frozen(self, reason: str) -> str:
        """Cut off the requests there; return the reason."""
        if self.member.condition in _SERVING and not self.parting:
            self.lose(reason)
        return reason

    async def _learn_facts(self, session: aiohttp.ClientSession) -> str | None:
        """Read what it says about itself; return why that cannot be used, if so."""
        changed, self._is_changed = self._is_changed, False
        if self.member.launch is not None and self.member.facts is NO_FACTS:
            await self._adapters.load(session, self.member.name, self.member.url)
        facts = await read_facts(session, self.member.url, self._options.timeout_s)
        if isinstance(facts, str):
            self._is_changed = self._is_changed or changed
            return facts
        facts = replace(facts, is_headway=facts.is_headway or self.member.launch is not None)
        self.member.facts = self.member.last_facts = facts
        return None

    def _is_well(self) -> None:
        self._misses = 0
        condition = self.member.condition
        if condition in (Condition.READY, Condition.DRAINING) or self._clock() < self._paused_until_s:
            return
        if self._ready_s is None:
            self._ready_s = self._clock()
        self.become(Condition.READY, "")

    def _is_ill(self, problem: str) -> None:
        self._misses += 1
        condition = self.member.condition
        joining = condition is Condition.STARTING and self.member.launch is None
        if (condition in _SERVING or joining) and self._misses >= self._options.misses:
            self.lose(problem)
        elif condition is Condition.READY:
            self.become(Condition.UNWELL, problem)
        elif condition is not Condition.DRAINING:
            self.member.reason = problem


async def stop_process(process: LaunchedServer) -> int:
    """Ask a server to stop; return its exit code once all of its processes have ended."""
    if process.poll() is None:
        await asyncio.to_thread(process.ask_to_stop)
    return await asyncio.to_thread(process.wait)


async def kill_process(process: LaunchedServer) -> int:
    """Kill a server with all of its processes; return its exit code."""
    process.kill()
    return await asyncio.to_thread(process.wait)


def how_it_ended(code: int, last_words: str = "") -> str:
    """How a process ended, and its last words."""
    seen = f"ended by signal {-code}" if code < 0 else f"ended with code {code}"
    ended = "ended" if code > LAST_CODE else seen
    return f"{ended}: {last_words}" if last_words else ended
