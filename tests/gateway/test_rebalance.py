"""Instances, each a real process, that change their pool because requests in the other run late."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from headway.core.slo import NO_TARGETS, Slo
from headway.errors import ConfigError
from headway.gateway.book.accounts import Accounts
from headway.gateway.fleet.fleet import Fleet
from headway.gateway.rebalance import rebalance, shares_left
from headway.routing.pools import Roles, RoleSettings
from tests.gateway.fleets import HASTY, SmallServer, running, until

AT_ONCE = RoleSettings(patience_s=0.0, dwell_s=1000.0)


def late_at(instance: str) -> Accounts:
    """A request that waits there and has a tenth of its target left, or will have in a moment."""
    accounts = Accounts()
    entry = accounts.offer("late", Slo(ttft_s=100.0), "", time.monotonic() - 90.0)
    accounts.place(entry, instance)
    return accounts


@asynccontextmanager
async def rebalancing(
    fleet: Fleet, accounts: Accounts, prepare: Callable[[str, str], object]
) -> AsyncIterator[None]:
    task = asyncio.create_task(
        rebalance(
            fleet,
            lambda: accounts.live,
            clock=time.monotonic,
            prepare=prepare,
            roles=Roles(AT_ONCE),
            interval_s=0.02,
        )
    )
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def test_the_share_left_in_each_pool() -> None:
    accounts = Accounts()
    for number, (instance, arrival_s, ttft_s) in enumerate(
        [("lp-0", 9.0, 4.0), ("lp-1", 8.0, 4.0), ("hp-0", 0.0, 5.0), ("hp-0", 9.0, None)]
    ):
        slo = NO_TARGETS if ttft_s is None else Slo(ttft_s=ttft_s)
        accounts.place(accounts.offer(str(number), slo, "", arrival_s), instance)
    started = accounts.offer("started", Slo(ttft_s=1.0), "", 0.0)
    accounts.place(started, "lp-0")
    accounts.first_token(started, 5.0)
    accounts.offer("at the door", Slo(ttft_s=1.0), "", 0.0)
    # At 10 s: of 4 s one has 3 left and one 2, (0.75 + 0.5) / 2; the one at hp is overdue, the other has no target.
    assert shares_left(accounts.live, now_s=10.0) == {"lp": 0.625, "hp": 0.0}
    assert shares_left([], now_s=10.0) == {}


async def test_an_instance_moves_to_the_pool_that_is_short(tmp_path: Path) -> None:
    prepared: list[tuple[str, str]] = []
    names = ("lp-0", "lp-1", "hp-0")
    members = [SmallServer(tmp_path, name).launched(name.partition("-")[0]) for name in names]
    async with running(*members) as fleet:
        await until(lambda: fleet.names() == names)
        async with rebalancing(fleet, late_at("hp-0"), lambda name, pool: prepared.append((name, pool))):
            await until(lambda: fleet.names() == ("lp-0", "hp-1", "hp-0"))
            assert fleet.member("hp-1").pool == "hp"
            assert prepared == [("hp-1", "hp")]
            await asyncio.sleep(0.2)  # it is the last one of its pool that is left
            assert fleet.names() == ("lp-0", "hp-1", "hp-0")


async def test_the_name_of_an_instance_that_is_away_is_not_given_to_another(tmp_path: Path) -> None:
    names = ("lp-0", "lp-1", "hp-0", "hp-1")
    members = [SmallServer(tmp_path, name).launched(name.partition("-")[0]) for name in names]
    async with running(*members, options=HASTY) as fleet:
        await until(lambda: fleet.names() == names)
        away = fleet.member("hp-1").process
        assert away is not None
        os.kill(away.pid, signal.SIGSTOP)
        await until(lambda: "hp-1" not in fleet.names())
        async with rebalancing(fleet, late_at("hp-0"), lambda name, pool: None):
            await until(lambda: "hp-2" in fleet.names())
        assert [member.name for member in fleet.members] == ["lp-0", "hp-2", "hp-0", "hp-1"]


async def test_what_was_joined_stays(tmp_path: Path) -> None:
    joined = [SmallServer(tmp_path, name) for name in ("lp-0", "lp-1")]
    processes = [server.launch(server.joined()) for server in joined]
    hp = SmallServer(tmp_path, "hp-0").launched("hp")
    async with running(*(server.joined() for server in joined), hp) as fleet:
        await until(lambda: len(fleet.names()) == 3)
        async with rebalancing(
            fleet, late_at("hp-0"), lambda name, pool: pytest.fail("nothing is to be launched")
        ):
            await asyncio.sleep(0.3)
        assert fleet.names() == ("lp-0", "lp-1", "hp-0")
    for process in processes:
        process.stop()


async def test_one_that_cannot_be_launched_in_another_pool_stays(tmp_path: Path) -> None:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def prepare(_name: str, _pool: str) -> None:
        loop.call_soon_threadsafe(asked.set)
        raise ConfigError("not there")

    names = ("lp-0", "lp-1", "hp-0")
    members = [SmallServer(tmp_path, name).launched(name.partition("-")[0]) for name in names]
    async with running(*members) as fleet:
        await until(lambda: fleet.names() == names)
        async with rebalancing(fleet, late_at("hp-0"), prepare):
            await asked.wait()
            await asyncio.sleep(0.1)
            assert fleet.names() == names
