"""Finds blocks for this step's residents before the step is filled."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from math import inf

from headway.core.job import Job
from headway.core.plan import Fate, StepOutcome, StepPlan
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.demand import new_blocks, surely_fits
from headway.policies.protocols import Order

_MOST_COUNT = 1_000_000
"""Far more steps than any run has, and few enough that the history fits memory."""


def check_count(name: str, count: int) -> None:
    """Raise ConfigError unless a setting that counts steps or preemptions is 0 to _MOST_COUNT."""
    if not 0 <= count <= _MOST_COUNT:
        raise ConfigError(f"{name} is {count}; accepted: 0 to {_MOST_COUNT:,}")


class Residency:
    """The jobs admitted in the last `min_residency` steps, which are spared so that each runs before it is evicted.

    Without this rule the last job to come back is often the next victim, since newcomers rank low (AdaptiveLLM gap A4).
    It is a preference: if only such jobs are left, they are victims like others. observe O(1), recent O(admitted in
    those steps).
    """

    def __init__(self, min_residency: int) -> None:
        check_count("min_residency", min_residency)
        self._admitted: deque[list[Job]] = deque(maxlen=min_residency)

    def recent(self) -> Collection[Job]:
        """The jobs to spare."""
        return {job for jobs in self._admitted for job in jobs}

    def observe(self, outcome: StepOutcome) -> None:
        """Count one more step."""
        self._admitted.append(outcome.admitted)


class OnShortage:
    """Mixed into an eviction that acts when blocks run out.

    `free_block_each` is as in `make_room`: vLLM's first scheduler asks it of every running sequence (vLLM 0.2.5,
    BlockSpaceManager.can_append_slot). Such an eviction may act while blocks are left, at a step that nothing tells
    ahead.
    """

    free_block_each: bool = False

    def next_change_s(self, view: StepView) -> float:
        """Never; not known where every job is to find a block free."""
        return -inf if self.free_block_each else inf


@dataclass(frozen=True, slots=True)
class Room:
    """An amount of blocks and slots of the device."""

    blocks: int
    slots: int

    def plus(self, other: Room) -> Room:
        """The sum of both."""
        return Room(self.blocks + other.blocks, self.slots + other.slots)

    def at_least(self, other: Room) -> Room:
        """The larger of both, for blocks and slots separately."""
        return Room(max(self.blocks, other.blocks), max(self.slots, other.slots))

    def covers(self, other: Room) -> bool:
        """Whether this is enough for `other`."""
        return self.blocks >= other.blocks and self.slots >= other.slots


def needed_room(view: StepView, job: Job) -> Room:
    """The room that a queued job takes when it becomes resident."""
    return Room(view.blocks(job.num_tokens), 1)


def freed_room(view: StepView, job: Job) -> Room:
    """The room that a resident frees when it leaves."""
    return Room(view.blocks(job.num_computed_tokens), 1)


ChooseFate = Callable[[Job, bool], Fate | None]
"""Decides what becomes of a victim's KV, given whether the host has room for it; None: the job keeps its KV."""


class HostRoom:
    """Free blocks of the host during one step. What is there already, or on its way, takes no more of them."""

    def __init__(self, view: StepView) -> None:
        self._view = view
        self._free_blocks = view.host_free_blocks

    def fate(self, job: Job, choose: ChooseFate) -> Fate | None:
        """The fate that `choose` decides for a resident; takes its room on the host if it is swapped."""
        unsent = self._view.unsent_blocks(job)
        fate = choose(job, self._view.host_total_blocks > 0 and unsent <= self._free_blocks)
        if fate is Fate.SWAP:
            self._free_blocks -= unsent
        return fate

    def copies(self, job: Job) -> bool:
        """Whether part of a resident is still to be copied and has room on the host; takes that room if so."""
        unsent = self._view.unsent_blocks(job)
        if not 0 < unsent <= self._free_blocks:
            return False
        self._free_blocks -= unsent
        return True


def make_room(
    view: StepView,
    plan: StepPlan,
    order: Order,
    choose: ChooseFate,
    *,
    serial: bool,
    spared: Collection[Job] = (),
    free_block_each: bool = False,
) -> StepPlan:
    """The plan with enough victims for the blocks that its `run` lacks; the same object if it lacks none.

    The lowest-ranked resident goes first, paused or not. Jobs in `spared` go last, and the highest-ranked never goes.
    Blocks that are coming free count, so no job is evicted for them: until they are free, the lowest-ranked jobs that
    need one pause, and the others run on. Such a step admits no job (invariant 4). A job that does not fit even alone
    stays in `run`, for the engine to deal with. If `choose` keeps so many jobs that none could run, it is overruled and
    they are recomputed. A victim's blocks count as freed even if it shares them with others; if that leaves the step
    short, the fill rule takes the last resident.

    With `free_block_each` a decode of `run` wants one block to be free after those before it have theirs, whether it
    opens one or not. So a victim goes even for a last decode that opens none and finds no block free; no job pauses for
    it. A prompt in progress wants only the blocks that it opens: vLLM 0.2.5 allocates prompts whole. Else the prompt
    could be its own victim, and start again in the same blocks for ever, while decodes wait for it.

    O(1) with blocks to spare, else O(residents), and short of blocks a ranking and O(residents) a victim. Source:
    AdaptiveLLM Algorithm 1 (section 1.3), with the lowest-ranked for its "pop" (gap A1).
    """
    if surely_fits(view, len(plan.run), plan.token_budget):
        return plan
    shortage = _Shortage(view, plan, serial=serial, free_block_each=free_block_each)
    if shortage.wanted <= view.free_blocks:
        return plan
    ranked = order.rank(view.residents, view.now_s)
    # The sort is stable: the lowest-ranked stay first among the spared, and among the others.
    for job in sorted(ranked[:0:-1], key=lambda job: job in spared):
        if shortage.wanted <= shortage.free + shortage.coming:
            break
        shortage.evict(job, choose)
    if not shortage.preempt and shortage.needed <= view.free_blocks:
        return plan
    while shortage.needed > shortage.free:
        # Computed again each time: the tokens of a paused job may let a lower-ranked one open a block.
        shortage.pause(next(job for job in reversed(ranked) if job in shortage.demand))
    run = shortage.run
    if shortage.all_paused:
        if len(shortage.preempt) < len(ranked) - 1:
            return make_room(
                view,
                plan,
                order,
                lambda *_: Fate.RECOMPUTE,
                serial=serial,
                spared=spared,
                free_block_each=free_block_each,
            )
        run = [ranked[0]]
    return replace(plan, run=run, preempt=shortage.preempt, admit=())


class _Shortage:
    """A step's run and preemptions while room is made, with the blocks that are free, coming free and needed."""

    def __init__(self, view: StepView, plan: StepPlan, *, serial: bool, free_block_each: bool) -> None:
        self.run = list(plan.run)
        self.preempt: dict[Job, Fate] = {}
        self.free = view.free_blocks
        self.coming = view.blocks_coming_free
        self._view = view
        self._plan = plan
        self._serial = serial
        self._free_block_each = free_block_each
        self._host = HostRoom(view)
        self._paused = False
        self._count()

    def _count(self) -> None:
        # Computed again each time: the tokens of a leaving job go to others, which may open more blocks.
        self.demand = new_blocks(self._view, self.run, self._plan.token_budget, self._plan.chunk_cap)

    @property
    def needed(self) -> int:
        """Blocks that the current run would newly take."""
        return sum(self.demand.values())

    @property
    def wanted(self) -> int:
        """Blocks that should be free: those that the run needs, and one if its last job must find one free."""
        if not (self._free_block_each and self.run):
            return self.needed
        last = self.run[-1]
        opens_none = last not in self.demand and last not in self._view.returned
        return self.needed + (opens_none and not last.prefilling)

    @property
    def all_paused(self) -> bool:
        """Whether no job is sure to run, and paused jobs have nothing to wait for.

        A job that came back from the host may be skipped for want of blocks.
        """
        return self._paused and not self.coming and all(job in self._view.returned for job in self.run)

    def evict(self, job: Job, choose: ChooseFate) -> None:
        """Take a job's KV away, unless `choose` keeps it."""
        fate = self._host.fate(job, choose)
        if fate is None:
            return
        self.preempt[job] = fate
        blocks = self._view.blocks(job.num_computed_tokens)
        if self._leaves_at_once(job, fate):
            self.free += blocks
        else:
            self.coming += blocks
        self._leave_run(job)

    def _leaves_at_once(self, job: Job, fate: Fate) -> bool:
        """Whether no copy holds a victim's blocks: neither one back to it, nor one to the host."""
        if job in self._view.restoring:
            return False
        copied_in_time = self._serial and not job.num_output_placeholders
        return fate is Fate.RECOMPUTE or copied_in_time or not self._view.uncopied_blocks(job)

    def pause(self, job: Job) -> None:
        """Let a job that needs blocks wait for them."""
        self._paused = True
        self._leave_run(job)

    def _leave_run(self, job: Job) -> None:
        if job in self.run:
            self.run.remove(job)
            self._count()
