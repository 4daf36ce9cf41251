"""Moves instances between pools while they serve, when one pool is short of time and the other is not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from itertools import count

from headway.core.job import Job
from headway.errors import HeadwayError
from headway.gateway.book.accounts import Entry
from headway.gateway.fleet.fleet import Fleet
from headway.routing.pools import RoleChange, Roles, instance_name, pool_of, share_left

INTERVAL_S = 1.0

Prepare = Callable[[str, str], object]
"""Checks that an instance of that name and pool can be launched; may take seconds. Raises HeadwayError if not."""

_LOG = logging.getLogger(__name__)


async def rebalance(
    fleet: Fleet,
    live: Callable[[], Iterable[Entry]],
    *,
    clock: Callable[[], float],
    prepare: Prepare,
    roles: Roles | None = None,
    interval_s: float = INTERVAL_S,
) -> None:
    """Check every `interval_s` whether an instance should move, and move it, until cancelled.

    Only launched instances move: they are drained, and launched again with the other pool's policy. `live` are the
    gateway's requests.
    """
    roles = roles or Roles()
    while True:
        await asyncio.sleep(interval_s)
        launched = [name for name in fleet.names() if fleet.member(name).launch is not None]
        change = roles.decide(launched, shares_left(live(), clock()), clock())
        if change is not None:
            await _move(fleet, _with_free_name(change, {member.name for member in fleet.members}), prepare)


async def _move(fleet: Fleet, change: RoleChange, prepare: Prepare) -> None:
    """Make the change; a change that fails does not stop the serving."""
    pool = pool_of(change.new_name)
    _LOG.info("%s becomes %s: requests there run late", change.instance, change.new_name)
    try:
        await asyncio.to_thread(prepare, change.new_name, pool)
        await fleet.recast(change.instance, change.new_name, pool)
    except HeadwayError as error:
        _LOG.warning("%s stays: %s", change.instance, error)


def shares_left(live: Iterable[Entry], now_s: float) -> Mapping[str, float]:
    """Pool -> mean share of the first token's target that its waiting requests have left, by `share_left`. O(live)."""
    waiting: dict[str, list[Job]] = {}
    for entry in live:
        if entry.instance and entry.first_s is None:
            # Only the part of the request that its slack needs.
            job = Job(
                id=entry.id,
                arrival_s=entry.arrival_s,
                num_prompt_tokens=1,
                max_output_tokens=1,
                slo=entry.slo,
            )
            waiting.setdefault(pool_of(entry.instance), []).append(job)
    return {pool: share_left(jobs, now_s) for pool, jobs in waiting.items()}


def _with_free_name(change: RoleChange, taken: set[str]) -> RoleChange:
    """The change with a free name: instances that cannot serve now keep theirs."""
    pool = pool_of(change.new_name)
    free = (name for number in count() if (name := instance_name(pool, number)) not in taken)
    return RoleChange(change.instance, next(free))
