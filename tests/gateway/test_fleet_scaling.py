"""Instances that are started and drained as advised: each a real process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from headway.gateway.fleet.fleet import Fleet
from headway.gateway.fleet.member import Condition, Member
from headway.gateway.fleet.scaling import STALE_S, FleetScaling
from headway.routing.scaling import Advice, Bounds, Scaler, ScalingReason
from tests.gateway.fleets import SmallServer, running, until
from tests.gateway.test_fleet import is_, is_alive, process_of


def needs(count: int) -> Advice:
    return Advice(needed=count, low=1, high=3)


def members_of(folder: Path, count: int = 2) -> list[Member]:
    """The first serves, the others are launched when they are needed."""
    launched = [SmallServer(folder, str(number)).launched() for number in range(count)]
    for member in launched[1:]:
        member.condition = Condition.PARKED
    return launched


@asynccontextmanager
async def scaled(*members: Member, window_s: float = 0.0) -> AsyncIterator[tuple[Fleet, FleetScaling]]:
    async with running(*members) as fleet:
        scaling = FleetScaling(fleet, Scaler(Bounds(1, len(members)), window_s))
        task = asyncio.create_task(scaling.run())
        await until(is_(members[0], Condition.READY))
        try:
            yield fleet, scaling
        finally:
            task.cancel()
            scaling.close()


async def test_an_instance_starts_when_it_is_needed_and_ends_when_it_is_not(tmp_path: Path) -> None:
    one, two = members_of(tmp_path)
    async with scaled(one, two) as (fleet, scaling):
        assert (two.process, fleet.names()) == (None, ("0",))
        scaling.advised(needs(2))
        assert scaling.recommendation.reason is ScalingReason.MORE
        await until(lambda: fleet.names() == ("0", "1"))
        process = process_of(two)
        scaling.advised(needs(1))
        await until(is_(two, Condition.PARKED))
        await until(lambda: process.poll() is not None)
        assert not is_alive(process.pid)
        # It was ended on purpose: no failure, and none that is started again.
        assert (two.failures, two.restarts, two.reason) == (0, 0, "fewer instances are needed")
        scaling.advised(needs(2))
        await until(lambda: fleet.names() == ("0", "1"))
        assert process_of(two).pid != process.pid


async def test_a_stream_is_not_cut_however_long_it_takes(tmp_path: Path) -> None:
    one, two = members_of(tmp_path)
    async with scaled(one, two) as (fleet, scaling):
        scaling.advised(needs(2))
        await until(lambda: len(fleet.names()) == 2)
        one.in_flight, two.in_flight = 2, 1
        scaling.advised(needs(1))
        await until(is_(two, Condition.DRAINING))
        assert fleet.names() == ("0",)
        await asyncio.sleep(0.3)
        assert two.condition is Condition.DRAINING
        assert not two.loss.is_set()
        two.in_flight = 0
        await until(is_(two, Condition.PARKED))


async def test_an_instance_that_drains_serves_on_when_it_is_needed_again(tmp_path: Path) -> None:
    one, two = members_of(tmp_path)
    async with scaled(one, two) as (fleet, scaling):
        scaling.advised(needs(2))
        await until(lambda: len(fleet.names()) == 2)
        process, one.in_flight, two.in_flight = process_of(two), 2, 1
        scaling.advised(needs(1))
        await until(is_(two, Condition.DRAINING))
        scaling.advised(needs(2))
        await until(lambda: fleet.names() == ("0", "1"))
        two.in_flight = 0
        await asyncio.sleep(0.3)
        assert process_of(two) is process
        assert is_alive(process.pid)


async def test_one_that_starts_is_stopped_before_one_that_serves(tmp_path: Path) -> None:
    one, two, three = members_of(tmp_path, 3)
    async with scaled(one, two, three) as (fleet, scaling):
        scaling.advised(needs(2))
        await until(lambda: len(fleet.names()) == 2)
        SmallServer(tmp_path, "2", port=9).behave(starts_after_s=600)
        scaling.advised(needs(3))
        await until(is_(three, Condition.STARTING))
        scaling.advised(needs(2))
        await until(is_(three, Condition.PARKED))
        assert fleet.names() == ("0", "1")


async def test_advice_of_long_ago_moves_nothing(tmp_path: Path) -> None:
    one, two = members_of(tmp_path)
    now: list[float] = [0.0]
    async with running(one, two) as fleet:
        scaling = FleetScaling(fleet, Scaler(Bounds(1, 2)), clock=lambda: now[0])
        scaling.advised(needs(2))
        assert scaling.recommendation.instances == 2
        now[0] = STALE_S + 1
        assert (scaling.recommendation.instances, scaling.recommendation.reason) == (1, ScalingReason.UNKNOWN)


async def test_a_parked_instance_is_as_good_as_none(tmp_path: Path) -> None:
    one, two = members_of(tmp_path)
    async with running(one, two) as fleet:
        known: Callable[[], object] = lambda: fleet.names()  # noqa: E731
        await until(known)
        # All that was asked for is there.
        await fleet.until_settled()
        assert [fleet.has(name) for name in ("0", "1", "2")] == [True, False, False]


async def test_advice_about_a_long_window_is_heeded_until_the_next(tmp_path: Path) -> None:
    # The next report of an hour comes ten minutes later.
    one, two = members_of(tmp_path)
    now: list[float] = [0.0]
    async with running(one, two) as fleet:
        scaling = FleetScaling(fleet, Scaler(Bounds(1, 2), window_s=3600.0), clock=lambda: now[0])
        scaling.advised(needs(2))
        now[0] = 660.0
        assert (scaling.recommendation.instances, scaling.recommendation.reason) == (2, ScalingReason.MORE)
