"""Makes room for a newcomer whose turn it is, by evicting jobs that can spare their place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from headway.core.job import Job, JobState
from headway.core.plan import Fate, StepPlan
from headway.core.view import StepView
from headway.policies.batching.admission import startable
from headway.policies.eviction.making_room import ChooseFate, HostRoom, Room, freed_room, needed_room
from headway.policies.protocols import KnowsLate, Order, knows_late

_SPARE_S = 3.0
"""A resident that is in time can spare its place if its latest start is this much later than the newcomer's."""


def make_urgent_room(
    view: StepView,
    plan: StepPlan,
    order: Order,
    choose: ChooseFate,
    *,
    spared: Collection[Job],
) -> StepPlan:
    """The plan with victims for the first newcomer, if it lacks room and is overdue or can be in time; else the same
    plan.

    A newcomer in time displaces jobs that are late or have no target, then jobs in time with only a deadline that is
    far enough. Jobs that can wait (`KnowsLate.that_can_wait`) leave for any newcomer except one of their kind. No job
    leaves that has recomputed more tokens than it has, so harm is bounded. A newcomer with only a
    deadline takes a worker slot, but no blocks of jobs with a target: these would have to be computed again, and so
    from job to job. An overdue job displaces any that is not overdue. If priority comes first, no resident of a better
    priority leaves. The lowest-ranked leave first, as many as the newcomer lacks blocks or a slot. None leaves if all
    of them would not be enough, if the blocks are coming free anyway, if the prefix cache lets the newcomer start
    without, or if the newcomer does not wait for room. Jobs in `spared` stay. The newcomer starts in a later step, when
    there is room and it still ranks first. O(log n) with room, O(residents) if none may leave, else a memory check and
    a ranking.
    """
    if not knows_late(order) or not view.waiting:
        return plan
    newcomer = next(iter(startable(view, order, plan.leave, 1)), None)
    if newcomer is None or newcomer.state is not JobState.WAITING:
        return plan
    if order.that_can_wait([newcomer], view.now_s):
        return plan
    coming = Room(view.blocks_coming_free, 0)
    kept = Room(view.spare_blocks, 0)
    if _free(view).plus(coming).covers(needed_room(view, newcomer).plus(kept)):
        return plan
    staying = {*spared, *view.restoring}
    leavable = _leavable(view, order, newcomer, staying) if view.ready(newcomer) else ()
    if getattr(order, "by_priority", False):
        leavable = [job for job in leavable if job.priority >= newcomer.priority]
    if not leavable:
        return plan
    lacking = Room(view.missing_blocks(newcomer), 1 - _free(view).slots)
    victims = _victims(view, order.rank(leavable, view.now_s), lacking, coming)
    host = HostRoom(view)
    preempt = {job: host.fate(job, choose) or Fate.RECOMPUTE for job in victims}
    if not preempt:
        return plan
    run = [job for job in plan.run if job not in preempt]
    return replace(plan, run=run, preempt=preempt, admit=(), room_for=newcomer)


def _free(view: StepView) -> Room:
    return Room(view.free_blocks, view.max_resident - len(view.residents))


def _leavable(view: StepView, order: KnowsLate, newcomer: Job, staying: Collection[Job]) -> Sequence[Job]:
    """Residents, except those `staying`, that may leave for this newcomer. O(residents)."""
    overdue = order.overdue(view.now_s)
    if newcomer in overdue:
        return [job for job in view.residents if job not in staying and job not in overdue]
    staying = {*staying, *overdue}
    if order.on_time([newcomer], view.now_s):
        staying |= {*_unsparing(view, order, newcomer)}
    else:
        patient = order.that_can_wait(view.residents, view.now_s)
        staying |= {job for job in view.residents if job not in patient}
    return [job for job in view.residents if job not in staying and job.recomputed_tokens <= job.num_tokens]


def _unsparing(view: StepView, order: KnowsLate, newcomer: Job) -> Iterable[Job]:
    """Residents that cannot spare what this newcomer, which can be in time, lacks."""
    if not _is_read(newcomer) and view.missing_blocks(newcomer) > view.blocks_coming_free:
        return (job for job in view.residents if job.slo)
    later_s = order.latest_start_s(newcomer) + _SPARE_S
    in_time = order.on_time(view.residents, view.now_s)
    return (job for job in in_time if _is_read(job) or order.latest_start_s(job) < later_s)


def _is_read(job: Job) -> bool:
    """Whether a client waits for its first token in time, or for each of the others."""
    return job.ttft_deadline_s is not None or job.slo.tbt_s is not None


def _victims(view: StepView, leavable: Sequence[Job], lacking: Room, freed: Room) -> Sequence[Job]:
    """The jobs that leave, the lowest-ranked first, in addition to what is `freed`; none if all of them are not
    enough.
    """
    victims: list[Job] = []
    for job in reversed(leavable):
        if freed.covers(lacking):
            break
        victims.append(job)
        freed = freed.plus(freed_room(view, job))
    return victims if freed.covers(lacking) else ()
