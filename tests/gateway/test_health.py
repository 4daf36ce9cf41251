"""An engine held against its own counters, on a clock of the test's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headway.gateway.fleet.health import HungEngineDetector
from headway.gateway.fleet.member import Member
from headway.http_client import open_session
from tests.gateway.fleets import SmallServer, running, until

PATIENCE_S = 100.0
STEP_S = PATIENCE_S / 10
"""From one look at the counters to the next."""


@pytest.mark.parametrize(
    ("ways", "busy", "stands_still"),
    [
        (lambda look: {"steps": 7, "running": 1}, True, True),
        (lambda look: {"steps": look, "running": 1}, True, False),
        (lambda look: {"steps": min(look, 5), "running": 1}, True, False),  # for half of its patience
        (lambda look: {"steps": 7, "running": 0}, True, False),
        (lambda look: {"steps": 7, "running": 1}, False, False),
        (lambda look: {"metrics": "no counters"}, True, False),
        (lambda look: {"steps": 7, "running": 1, "paused": "is_paused"}, True, False),
        (lambda look: {"steps": 7, "running": 1, "paused": "is_sleeping"}, True, False),
    ],
    ids=[
        "stands",
        "moves",
        "stood up",
        "has nothing",
        "was sent nothing",
        "does not say",
        "was paused",
        "was laid to sleep",
    ],
)
async def test_who_has_requests_and_takes_no_step_stands_still(
    tmp_path: Path, ways: Callable[[int], dict[str, Any]], busy: bool, stands_still: bool
) -> None:
    server, now_s = SmallServer(tmp_path, "0"), 0.0
    async with running(server.launched()) as fleet, open_session() as session:
        await until(fleet.names)
        (member,) = fleet.members
        progress = HungEngineDetector(PATIENCE_S, lambda: now_s)
        told = None
        for look in range(11):
            server.behave(**ways(look))
            told = await asked(progress, session, member, busy=busy)
            now_s += STEP_S
    assert told == (
        "its engine stands still: no step for 100 s, with requests there" if stands_still else None
    )


async def asked(
    progress: HungEngineDetector, session: aiohttp.ClientSession, member: Member, *, busy: bool
) -> str | None:
    return await progress.problem(session, member.url, 60.0, busy=busy)


async def test_who_stood_still_has_to_move_whatever_is_asked_of_it(tmp_path: Path) -> None:
    server, now_s = SmallServer(tmp_path, "0"), 0.0
    async with running(server.launched()) as fleet, open_session() as session:
        await until(fleet.names)
        (member,) = fleet.members
        progress = HungEngineDetector(PATIENCE_S, lambda: now_s)
        server.behave(steps=7, running=1)
        await asked(progress, session, member, busy=True)
        now_s = PATIENCE_S
        assert await asked(progress, session, member, busy=True) is not None
        now_s += STEP_S
        assert await asked(progress, session, member, busy=False) is not None
        server.behave(steps=8, running=1)
        now_s += STEP_S
        assert await asked(progress, session, member, busy=False) is None
