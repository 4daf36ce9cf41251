"""Blocks for a newcomer that can be in time, from those that cannot."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from headway.core.job import Job, JobState
from headway.core.plan import Fate, StepPlan
from headway.core.view import StepView
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

    Victims are residents that are late or have no target, the lowest ranked first, as many as it lacks blocks and no
    more; none if all of them were not enough, if it is blocks that are coming free anyway, if it starts without, since
    the prefix cache holds the rest of it, or if blocks are not what it waits for. Those `spared`, and those
    that lost their KV `max_preemptions` times, stay. It starts in a later step, when the blocks are free, if it
    then still ranks first. O(log n) with room, else a memory check and a ranking of the residents.
    """
    if not knows_late(order) or not view.waiting:
        return plan
    first = [job for job in order.top(1 + len(plan.leave), view.now_s) if job not in plan.leave]
    if not first or first[0].state is not JobState.WAITING:
        return plan
    newcomer = first[0]
    lacking = view.blocks(newcomer.num_tokens) - view.free_blocks - view.blocks_coming_free
    if lacking <= 0 or not order.on_time([newcomer], view.now_s):
        return plan
    if view.admissible(newcomer) or not view.ready(newcomer):
        return plan
    victims = _victims(view, order, lacking, spared, max_preemptions)
    host = HostRoom(view)
    preempt = {job: host.fate(job, choose) or Fate.RECOMPUTE for job in victims}
    if not preempt:
        return plan
    return replace(plan, run=[job for job in plan.run if job not in preempt], preempt=preempt, admit=())


def _victims(
    view: StepView, order: KnowsLate, lacking: int, spared: Collection[Job], max_preemptions: int
) -> Sequence[Job]:
    """Those that leave, the lowest ranked first; nobody if that is not enough."""
    in_time = set(order.on_time(view.residents, view.now_s))
    victims: list[Job] = []
    for job in reversed(order.rank(view.residents, view.now_s)):
        if lacking <= 0:
            break
        may_stay = job in in_time or job in spared or job in view.restoring or job.awaiting_output
        if not may_stay and job.num_preemptions < max_preemptions:
            victims.append(job)
            lacking -= view.blocks(job.num_computed_tokens)
    return victims if lacking <= 0 else ()
