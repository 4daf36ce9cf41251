"""Blocks and a seat for a newcomer that can be in time, from those that cannot."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from headway.core.job import Job, JobState
from headway.core.plan import Fate, StepPlan
from headway.core.view import StepView
from headway.policies.eviction.exchange import Room, needed_room
from headway.policies.eviction.host_room import ChooseFate, HostRoom
from headway.policies.order import KnowsLate, Order, knows_late

DEFAULT_MAX_PREEMPTIONS = 4


def make_urgent_room(
    view: StepView,
    plan: StepPlan,
    order: Order,
    choose: ChooseFate,
    *,
    spared: Collection[Job],
    max_preemptions: int,
) -> StepPlan:
    """The plan with victims for the first newcomer that can be in time and has no room; the same object for nobody.

    Victims are residents that are late or have no target, the lowest ranked first, as many as it lacks blocks, or a
    worker slot, and no more; none if all of them were not enough, if it is blocks that are coming free anyway, if it
    starts without, since the prefix cache holds the rest of it, or if room is not what it waits for. Those `spared`,
    and those that lost their KV `max_preemptions` times, stay. It starts in a later step, when there is room, if it
    then still ranks first. O(log n) with room, else a memory check and a ranking of the residents.
    """
    if not knows_late(order) or not view.waiting:
        return plan
    first = [job for job in order.top(1 + len(plan.leave), view.now_s) if job not in plan.leave]
    if not first or first[0].state is not JobState.WAITING:
        return plan
    newcomer = first[0]
    coming = Room(view.blocks_coming_free, 0)
    if _free(view).plus(coming).covers(needed_room(view, newcomer)):
        return plan
    if not order.on_time([newcomer], view.now_s) or not view.ready(newcomer):
        return plan
    lacking = Room(view.missing_blocks(newcomer), 1 - _free(view).slots)
    if coming.covers(lacking):
        return plan
    victims = _victims(view, order, lacking, coming, spared, max_preemptions)
    host = HostRoom(view)
    preempt = {job: host.fate(job, choose) or Fate.RECOMPUTE for job in victims}
    if not preempt:
        return plan
    run = [job for job in plan.run if job not in preempt]
    return replace(plan, run=run, preempt=preempt, admit=(), room_for=newcomer)


def _free(view: StepView) -> Room:
    return Room(view.free_blocks, view.max_resident - len(view.residents))


def _victims(
    view: StepView,
    order: KnowsLate,
    lacking: Room,
    freed: Room,
    spared: Collection[Job],
    max_preemptions: int,
) -> Sequence[Job]:
    """Those that leave, the lowest ranked first, beside what is `freed` anyway; nobody if that is not enough."""
    in_time = set(order.on_time(view.residents, view.now_s))
    victims: list[Job] = []
    for job in reversed(order.rank(view.residents, view.now_s)):
        if freed.covers(lacking):
            break
        may_stay = job in in_time or job in spared or job in view.restoring
        if not may_stay and job.num_preemptions < max_preemptions:
            victims.append(job)
            freed = freed.plus(Room(view.blocks(job.num_computed_tokens), 1))
    return victims if freed.covers(lacking) else ()
