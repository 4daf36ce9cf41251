"""Who leaves the device and who comes back, so that it holds those who will be served soonest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headway.core.job import Job, JobState
from headway.core.plan import Fate
from headway.core.view import StepView
from headway.policies.eviction.host_room import ChooseFate, HostRoom

Turn = tuple[float, int, Job]
"""When a job is served next: seconds until then, as expected (0 where nobody knows), and its rank, unlike others'."""


@dataclass(frozen=True, slots=True)
class Room:
    """Blocks and slots of the device."""

    blocks: int
    slots: int

    def plus(self, other: Room) -> Room:
        """Both together."""
        return Room(self.blocks + other.blocks, self.slots + other.slots)

    def at_least(self, other: Room) -> Room:
        """The more of either."""
        return Room(max(self.blocks, other.blocks), max(self.slots, other.slots))

    def covers(self, other: Room) -> bool:
        """Whether it is enough for `other`."""
        return self.blocks >= other.blocks and self.slots >= other.slots


def needed_room(view: StepView, job: Job) -> Room:
    """What a queued job takes when it becomes resident."""
    return Room(view.blocks(job.num_tokens), 1)


Worth = Callable[[Turn, Turn], bool]
"""Whether the first, a resident, should leave for the second, who is queued and served sooner."""


@dataclass(slots=True)
class Exchange:
    """Settles who leaves and who comes back in one step; nobody comes back in a step in which somebody leaves.

    `last` are the residents that may leave, the soonest served first; they leave from the end. `idle` is kept
    free for those who may come, or for the newcomers in the queue if these need more.
    """

    view: StepView
    free: Room
    idle: Room
    choose: ChooseFate
    worth: Worth
    last: list[Turn] = field(default_factory=list)
    leaving: dict[Job, Fate] = field(default_factory=dict)
    returning: list[Job] = field(default_factory=list)
    _host: HostRoom = field(init=False)

    def __post_init__(self) -> None:
        self._host = HostRoom(self.view)

    def is_ample(self, newcomers: Sequence[Job]) -> bool:
        """Whether all of them fit, and the idle room is there twice: nobody leaves now, or is next to. O(newcomers)."""
        blocks = sum(self.view.blocks(job.num_tokens) for job in newcomers)
        return self.free.covers(self.idle.at_least(Room(blocks, len(newcomers))).plus(self.idle))

    @property
    def may_return(self) -> bool:
        """Whether anybody on the host could have room while nobody leaves."""
        return self.free.covers(self.idle.plus(Room(1, 1)))

    def settle(self, queue: Sequence[Turn]) -> None:
        """Make the idle room, then give those in the queue theirs, the soonest served first. O(queue + leaving)."""
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
        """Those that would leave for one more idle room, and are to be copied: as many as the host has room for."""
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
        """The last one leaves, unless it is to keep its KV."""
        _, _, job = self.last.pop()
        fate = self._host.fate(job, self.choose)
        if fate is None:
            return
        self.leaving[job] = fate
        self.free = self.free.plus(Room(self.view.blocks(job.num_computed_tokens), 1))
