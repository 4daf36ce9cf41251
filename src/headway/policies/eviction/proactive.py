"""Moves KV to the host ahead of need, and back ahead of need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count, repeat
from math import inf
from typing import Protocol, TypeGuard, runtime_checkable

from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job, JobState
from headway.core.plan import Fate, StepOutcome, StepPlan
from headway.core.view import StepView
from headway.policies.eviction.making_room import (
    ChooseFate,
    HostRoom,
    Residency,
    Room,
    check_count,
    freed_room,
    make_room,
    needed_room,
)
from headway.policies.protocols import Order, offers


@runtime_checkable
class Foreseeing(Protocol):
    """An order that says when a job will probably be served next, for an eviction that moves KV ahead of need."""

    def next_service_s(self, jobs: Sequence[Job], now_s: float, width: int) -> list[float]:
        """Seconds until each of `jobs` is expected to be served next, `width` at a time; ties are for `rank`."""

    def num_at_first(self, levels: int) -> int:
        """Live jobs at the first so many levels: what a burst looks like."""


def foresees(order: Order) -> TypeGuard[Foreseeing]:
    """Whether an order is `Foreseeing`."""
    return offers(order, Foreseeing)


NextService = tuple[float, int, Job]
"""Expected seconds until a job is served next (0 if unknown), its unique rank, and the job."""


Worth = Callable[[NextService, NextService], bool]
"""Whether the first, a resident, should leave for the second, which is queued and served sooner."""


@dataclass(slots=True)
class KvMoves:
    """Decides which jobs leave and which come back in one step; none comes back in a step in which one leaves.

    `last` are the residents that may leave, the soonest served first; they leave from the end. `idle` is room kept free
    for arrivals, or for the queued newcomers if these need more.
    """

    view: StepView
    free: Room
    idle: Room
    choose: ChooseFate
    worth: Worth
    last: list[NextService] = field(default_factory=list)
    leaving: dict[Job, Fate] = field(default_factory=dict)
    returning: list[Job] = field(default_factory=list)
    _host: HostRoom = field(init=False)

    def __post_init__(self) -> None:
        self._host = HostRoom(self.view)

    def is_ample(self, newcomers: Sequence[Job]) -> bool:
        """Whether all newcomers fit and twice the idle room is free, so that no job leaves now or soon.
        O(newcomers).
        """
        blocks = sum(self.view.blocks(job.num_tokens) for job in newcomers)
        return self.free.covers(self.idle.at_least(Room(blocks, len(newcomers))).plus(self.idle))

    @property
    def may_return(self) -> bool:
        """Whether a job on the host could find room while none leaves."""
        return self.free.covers(self.idle.plus(Room(1, 1)))

    def settle(self, queue: Sequence[NextService]) -> None:
        """Free the idle room, then give queued jobs theirs, the soonest served first. O(queue + leaving)."""
        while self.last and not self.free.covers(self.idle):
            self._let_go()
        newcomers = back = Room(0, 0)
        for turn in queue:
            job = turn[2]
            needed, is_back = needed_room(self.view, job), job.state is JobState.SWAPPED
            newcomers, back = (newcomers, back.plus(needed)) if is_back else (newcomers.plus(needed), back)
            wanted = self.idle.at_least(newcomers).plus(back)
            while self.last and not self.free.covers(wanted) and self.worth(self.last[-1], turn):
                self._let_go()
            if not self.free.covers(wanted):
                break
            if is_back:
                self.returning.append(job)
        if self.leaving:
            self.returning.clear()

    def next_to_leave(self) -> list[Job]:
        """The jobs that would leave for twice the idle room, and are to be copied in advance, as far as the host
        has room.
        """
        found: list[Job] = []
        blocks = self.free.blocks
        for _, _, job in reversed(self.last):
            if blocks >= 2 * self.idle.blocks:
                break
            blocks += self.view.blocks(job.num_computed_tokens)
            if self._host.copies(job):
                found.append(job)
        return found

    def _let_go(self) -> None:
        """Let the last one leave, unless it keeps its KV."""
        _, _, job = self.last.pop()
        fate = self._host.fate(job, self.choose)
        if fate is None:
            return
        self.leaving[job] = fate
        self.free = self.free.plus(freed_room(self.view, job))


class Proactive:
    """Keeps the jobs on the device that will be served soonest, with room to spare for newcomers.

    Soonest is by the order's own forecast (ENST), or by rank if it has none. Some room is kept idle: blocks and slots
    for `idle_jobs` (None: a batch) with a block each, or for as many jobs of the usual size as stand at the first
    `burst_levels` levels, up to a batch, whichever is more: many arrivals announce more. The paused resident that is
    served last leaves while that room is lacking. It also leaves while a waiting or swapped job does not fit and is
    served sooner by more than the copies take; among jobs whose turn is now the rank decides. In steps in which no job
    leaves, jobs on the host come back, the soonest first. In steps in which none comes either, the jobs that would
    leave for twice the idle room are copied in advance (`offload`), so that leaving is instant.

    Bounded harm: a job that has lost its KV `max_preemptions` times, or came in the last `min_residency` steps, is left
    alone. Only paused jobs leave ahead of need; a running one leaves when blocks run out, the lowest-ranked first. If
    the host has no room, no job leaves ahead of need, and one that has to leave is recomputed. With `drop` all that
    leave are recomputed (as in FastServe's ablation). Without `ahead` no room is kept idle, no job is copied in
    advance, and jobs on the host come back by rank (its reactive swapping, with `serial`). `by_rank` uses the rank as
    forecast, as the released code does. O(residents) while no job can move, else O((residents + swapped) log). Source:
    FastServe (Wu et al. 2023) section 4.2, as spec 4.6 resolves it.
    """

    def __init__(
        self,
        cost: CostModel | None = None,
        *,
        idle_jobs: int | None = None,
        burst_levels: int = 2,
        max_preemptions: int = 16,
        min_residency: int = 8,
        drop: bool = False,
        by_rank: bool = False,
        ahead: bool = True,
        serial: bool = False,
    ) -> None:
        given = {"idle_jobs": idle_jobs, "burst_levels": burst_levels, "max_preemptions": max_preemptions}
        for name, value in given.items():
            if value is not None:
                check_count(name, value)
        self.idle_jobs = idle_jobs
        self.burst_levels = burst_levels
        self.max_preemptions = max_preemptions
        self.min_residency = min_residency
        self.drop = drop
        self.uses_host = not drop
        self.by_rank = by_rank
        self.ahead = ahead
        self.serial = serial
        self._cost: CostModel = cost or UnknownCost()
        self._residency = Residency(min_residency)

    def evict(self, view: StepView, plan: StepPlan, order: Order) -> StepPlan:
        """The plan with room made: first for this step's tokens, then ahead of need."""
        plan = make_room(view, plan, order, self._fate, serial=self.serial, spared=self._residency.recent())
        if plan.preempt or not (view.host_total_blocks or self.drop):
            return plan
        running = set(plan.run)
        paused = [job for job in view.residents if job not in running]
        if not paused and not view.swapped:
            return plan
        leavable = self._leavable(view, paused)
        moves = KvMoves(
            view=view,
            free=Room(view.free_blocks + view.blocks_coming_free, view.max_resident - len(view.residents)),
            idle=self._idle(view, order),
            choose=self._ahead_fate,
            worth=self._worth(view),
        )
        if not leavable and not (view.swapped and moves.may_return):
            return plan
        top = order.top(view.max_run + len(plan.leave) + len(view.fetching), view.now_s)
        newcomers = [
            job
            for job in top
            if job.state is JobState.WAITING and job not in plan.leave and job not in view.fetching
        ]
        if not view.swapped and moves.is_ample(newcomers):
            return plan
        swapped = [job for job in view.swapped if job not in plan.leave]
        turns = self._turns(view, order, [*newcomers, *swapped, *leavable])
        moves.last = [turn for turn in turns if turn[2].state is JobState.RESIDENT]
        moves.settle([turn for turn in turns if turn[2].state is not JobState.RESIDENT][: view.max_run])
        plan.preempt = moves.leaving
        if self.ahead and not self.drop and not plan.preempt:
            admitted = set(plan.admit)
            plan.prefetch = [job for job in moves.returning if job not in admitted]
            plan.offload = [] if plan.prefetch else moves.next_to_leave()
        return plan

    def _fate(self, job: Job, has_room: bool) -> Fate:
        return Fate.SWAP if has_room and not self.drop else Fate.RECOMPUTE

    def _ahead_fate(self, job: Job, has_room: bool) -> Fate | None:
        return Fate.RECOMPUTE if self.drop else Fate.SWAP if has_room else None

    def _idle(self, view: StepView, order: Order) -> Room:
        """The room kept for arrivals: at most half of the blocks, and no slots that a batch needs."""
        if not self.ahead:
            return Room(0, 0)
        jobs = view.max_run if self.idle_jobs is None else self.idle_jobs
        blocks = jobs
        if self.burst_levels and foresees(order):
            burst = min(order.num_at_first(self.burst_levels), view.max_run)
            held = view.total_blocks - view.free_blocks
            blocks = max(blocks, burst * held // max(1, len(view.residents)))
            jobs = max(jobs, burst)
        return Room(min(blocks, view.total_blocks // 2), min(jobs, view.max_resident - view.max_run))

    def _leavable(self, view: StepView, paused: Sequence[Job]) -> list[Job]:
        """The paused jobs that can be moved now, and were not moved too often or too recently."""
        recent = self._residency.recent()
        host_blocks = view.host_free_blocks
        surely_fits = inf if self.drop else host_blocks * view.block_size
        return [
            job
            for job in paused
            if job.num_preemptions < self.max_preemptions
            and not job.awaiting_output
            and job not in recent
            and job not in view.restoring
            # Most jobs fit whatever the host already has of them; it is asked only about the others.
            and (job.num_computed_tokens <= surely_fits or view.unsent_blocks(job) <= host_blocks)
        ]

    def _turns(self, view: StepView, order: Order, jobs: Sequence[Job]) -> list[NextService]:
        """When each job is served next, the soonest first."""
        ranked = order.rank(jobs, view.now_s)
        if self.by_rank or not foresees(order):
            return list(zip(repeat(0.0), count(), ranked))
        # Ranks differ, so jobs are never compared.
        return sorted(zip(order.next_service_s(ranked, view.now_s, view.max_run), count(), ranked))

    def _worth(self, view: StepView) -> Worth:
        """Whether a resident is served later than a queued job, by more than it takes to move both."""

        def worth(resident: NextService, queued: NextService) -> bool:
            soon_s, _, leaves = resident
            queued_s, _, comes = queued
            if not soon_s:
                return resident > queued
            moving_s = self._cost.swap_out_s(view.uncopied_blocks(leaves))
            if comes.state is JobState.SWAPPED:
                moving_s += self._cost.swap_in_s(view.blocks(comes.num_tokens))
            return soon_s > queued_s + moving_s

        return worth

    def next_change_s(self, view: StepView) -> float:
        """Never while all residents run and none is on the host; otherwise which job comes back first may change
        with time.
        """
        return -inf if view.swapped else inf

    def observe(self, outcome: StepOutcome) -> None:
        """Note which jobs were admitted."""
        self._residency.observe(outcome)
