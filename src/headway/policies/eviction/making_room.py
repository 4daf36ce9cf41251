"""Blocks for this step's residents, found before the step is filled."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from headway.core.job import Job
from headway.core.plan import Fate, StepPlan
from headway.core.view import StepView
from headway.policies.demand import new_blocks, surely_fits
from headway.policies.eviction.host_room import ChooseFate, HostRoom
from headway.policies.order import Order


def make_room(
    view: StepView,
    plan: StepPlan,
    order: Order,
    choose: ChooseFate,
    *,
    serial: bool,
    spared: Collection[Job] = (),
) -> StepPlan:
    """The plan with as many victims as its `run` lacks blocks; the same object when it lacks none.

    The resident that ranks lowest goes first, paused ones too, those `spared` last; the one that ranks highest
    never goes. Blocks that are coming free count, so nobody is evicted for blocks that are on their way: until
    those are there, whoever needs one pauses, the lowest ranked first, and the others run on. Nobody is
    admitted in such a step (invariant 4). One that cannot fit although it is alone stays in `run`: it is the
    engine's to deal with. If `choose` lets too many stay for anybody to run, it is overruled, and they are
    recomputed. Blocks that a victim shares with others are counted although they stay: where that leaves the
    step short, the fill rule takes the last resident.

    O(1) with blocks to spare, else O(residents), and short of blocks a ranking and O(residents) a victim.
    Source: AdaptiveLLM Algorithm 1 (section 1.3), with the lowest for its "pop" (gap A1).
    """
    if surely_fits(view, len(plan.run), plan.token_budget):
        return plan
    shortage = _Shortage(view, plan, serial=serial)
    if shortage.needed <= view.free_blocks:
        return plan
    ranked = order.rank(view.residents, view.now_s)
    # A stable sort: among the spared, and among the others, still the lowest first.
    for job in sorted(ranked[:0:-1], key=lambda job: job in spared):
        if shortage.needed <= shortage.free + shortage.coming:
            break
        shortage.evict(job, choose)
    while shortage.needed > shortage.free:
        # Anew each time: the tokens of one that pauses may let a lower one open a block.
        shortage.pause(next(job for job in reversed(ranked) if job in shortage.demand))
    run = shortage.run
    if shortage.all_paused:
        if len(shortage.preempt) < len(ranked) - 1:
            return make_room(view, plan, order, _recompute, serial=serial, spared=spared)
        run = [ranked[0]]
    return replace(plan, run=run, preempt=shortage.preempt, admit=())


def _recompute(job: Job, has_room: bool) -> Fate:
    return Fate.RECOMPUTE


@dataclass(slots=True)
class _Shortage:
    """A step's run and preemptions while room is made, and the blocks that are free, coming free and needed."""

    view: StepView
    plan: StepPlan
    serial: bool
    run: list[Job] = field(init=False)
    demand: dict[Job, int] = field(init=False)
    preempt: dict[Job, Fate] = field(default_factory=dict)
    paused: bool = False
    free: int = field(init=False)
    coming: int = field(init=False)
    host: HostRoom = field(init=False)

    def __post_init__(self) -> None:
        self.run = list(self.plan.run)
        self._count()
        self.free = self.view.free_blocks
        self.coming = self.view.blocks_coming_free
        self.host = HostRoom(self.view)

    def _count(self) -> None:
        # Anew each time: the tokens of one that leaves go to the others, who may open more blocks with them.
        self.demand = new_blocks(self.view, self.run, self.plan.token_budget, self.plan.chunk_cap)

    @property
    def needed(self) -> int:
        """Blocks that the run as it is would newly take."""
        return sum(self.demand.values())

    @property
    def all_paused(self) -> bool:
        """Whether nobody is sure to run, and there is nothing that those who pause could wait for.

        One that came back may be passed over for want of blocks.
        """
        return self.paused and not self.coming and all(job in self.view.returned for job in self.run)

    def evict(self, job: Job, choose: ChooseFate) -> None:
        """Take a job's KV away, unless it is to keep it."""
        fate = self.host.fate(job, choose)
        if fate is None:
            return
        self.preempt[job] = fate
        blocks = self.view.blocks(job.num_computed_tokens)
        if self._leaves_at_once(job, fate):
            self.free += blocks
        else:
            self.coming += blocks
        self._leave_run(job)

    def _leaves_at_once(self, job: Job, fate: Fate) -> bool:
        """Whether no copy holds a victim's blocks: one back to it, or one to the host beside or after a step."""
        if job in self.view.restoring:
            return False
        copied_in_time = self.serial and not job.num_output_placeholders
        return fate is Fate.RECOMPUTE or copied_in_time or not self.view.uncopied_blocks(job)

    def pause(self, job: Job) -> None:
        """Let a job that needs blocks wait for them."""
        self.paused = True
        self._leave_run(job)

    def _leave_run(self, job: Job) -> None:
        if job in self.run:
            self.run.remove(job)
            self._count()
