"""KV leaves ahead of need, and comes back ahead of need."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, repeat
from math import inf

from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job, JobState
from headway.core.plan import Fate, StepOutcome, StepPlan
from headway.core.view import StepView
from headway.policies.eviction.counts import check_count
from headway.policies.eviction.exchange import Exchange, Room, Turn, Worth
from headway.policies.eviction.making_room import make_room
from headway.policies.eviction.residency import Residency
from headway.policies.order import Order, foresees

DEFAULT_MAX_PREEMPTIONS = 16
DEFAULT_MIN_RESIDENCY = 8


class Proactive:
    """The device keeps those who will be served soonest, with room to spare for newcomers.

    Soonest is by the order's own foresight (ENST), or by rank where it has none. Some room is kept idle: blocks
    and slots for `idle_jobs` (None: a batch), a block each, or for as many jobs of the usual size as stand at the
    first `burst_levels` levels, up to a batch, whichever is more: where many have come, more will. The paused
    resident that is served last leaves while that room is lacking, and while somebody who is served sooner, by more
    than the copies take, is waiting or on the host and does not fit; among those whose turn is now, who ranks higher
    counts as sooner by enough. In steps in which nobody leaves those on
    the host come back, the soonest first. In steps in which nobody comes either, those who would leave for once more
    as much idle room are copied beforehand (`offload`), so that leaving is instant.

    Bounded harm: a job that has lost its KV `max_preemptions` times, or came in the last `min_residency` steps,
    is left alone. Only paused jobs go ahead of need; one that runs goes when blocks run out, the lowest ranked first.
    Where the host has no room nobody leaves ahead of need, and who has to leave is computed again. With `drop` all
    who leave are (the recompute of FastServe's ablation). Without `ahead` no room is kept idle, nobody is copied
    beforehand, and who is on the host comes back by its rank (its reactive swapping, with `serial`). `by_rank` takes
    the rank for foresight, as the released code does. O(residents) while nobody can move, else
    O((residents + swapped) log).
    Source: FastServe (Wu et al. 2023) section 4.2, as spec 4.6 resolves it.
    """

    def __init__(
        self,
        cost: CostModel | None = None,
        *,
        idle_jobs: int | None = None,
        burst_levels: int = 2,
        max_preemptions: int = DEFAULT_MAX_PREEMPTIONS,
        min_residency: int = DEFAULT_MIN_RESIDENCY,
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
        exchange = Exchange(
            view=view,
            free=Room(view.free_blocks + view.blocks_coming_free, view.max_resident - len(view.residents)),
            idle=self._idle(view, order),
            choose=self._ahead_fate,
            worth=self._worth(view),
        )
        if not leavable and not (view.swapped and exchange.may_return):
            return plan
        top = order.top(view.max_run + len(plan.leave) + len(view.fetching), view.now_s)
        newcomers = [
            job
            for job in top
            if job.state is JobState.WAITING and job not in plan.leave and job not in view.fetching
        ]
        if not view.swapped and exchange.is_ample(newcomers):
            return plan
        swapped = [job for job in view.swapped if job not in plan.leave]
        turns = self._turns(view, order, [*newcomers, *swapped, *leavable])
        exchange.last = [turn for turn in turns if turn[2].state is JobState.RESIDENT]
        exchange.settle([turn for turn in turns if turn[2].state is not JobState.RESIDENT][: view.max_run])
        plan.preempt = exchange.leaving
        if self.ahead and not self.drop and not plan.preempt:
            admitted = set(plan.admit)
            plan.prefetch = [job for job in exchange.returning if job not in admitted]
            plan.offload = [] if plan.prefetch else exchange.next_to_leave()
        return plan

    def _fate(self, job: Job, has_room: bool) -> Fate:
        return Fate.SWAP if has_room and not self.drop else Fate.RECOMPUTE

    def _ahead_fate(self, job: Job, has_room: bool) -> Fate | None:
        return Fate.RECOMPUTE if self.drop else Fate.SWAP if has_room else None

    def _idle(self, view: StepView, order: Order) -> Room:
        """What is kept for those who may come: at most half of the blocks, and no slots that a batch needs."""
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
        """The paused jobs that can be moved now, and have not been moved too often or too lately."""
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
            # Most fit whatever the host has of them; only of the others it is asked.
            and (job.num_computed_tokens <= surely_fits or view.unsent_blocks(job) <= host_blocks)
        ]

    def _turns(self, view: StepView, order: Order, jobs: Sequence[Job]) -> list[Turn]:
        """When each is served next, the soonest first."""
        ranked = order.rank(jobs, view.now_s)
        if self.by_rank or not foresees(order):
            return list(zip(repeat(0.0), count(), ranked))
        # Places differ, so jobs are never compared.
        return sorted(zip(order.next_service_s(ranked, view.now_s, view.max_run), count(), ranked))

    def _worth(self, view: StepView) -> Worth:
        """Whether a resident is served later than one who is queued, by more than it takes to move both."""

        def worth(resident: Turn, queued: Turn) -> bool:
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
        """Never while all residents run and nobody is on the host; who comes back first may change with time."""
        return -inf if view.swapped else inf

    def observe(self, outcome: StepOutcome) -> None:
        """Note who came."""
        self._residency.observe(outcome)
