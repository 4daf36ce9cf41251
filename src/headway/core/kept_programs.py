"""Keeps the KV blocks of agent programs on the device while their tools run."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import Protocol

from headway.core.job import Job, JobState
from headway.core.plan import StepOutcome
from headway.core.view import StepView

Program = tuple[str, str]
"""A tenant, and the name of one of its programs."""

GONE_S = 600.0
"""A program without requests for this long is over; a later turn of its name begins another."""
PATIENCE_S = 120.0
_MOST_PROGRAMS = 10_000
_NEWEST_WEIGHT = 1 / 8
"""Of what a store held of the last program that came back, in what it is taken to hold of the next."""


def program_of(job: Job) -> Program | None:
    """The program to which a job belongs, if known."""
    return None if job.program is None else (job.tenant, job.program)


class KeptBlocks(Protocol):
    """Device memory whose blocks can be kept although no request holds them."""

    @property
    def free_blocks(self) -> int:
        """Blocks that can be allocated now."""
        ...

    def keep(self, job: Job) -> Sequence[int]:
        """Keep, and return, those of a resident's blocks that others can find."""
        ...

    def let_go(self, blocks: Sequence[int]) -> None:
        """Stop keeping blocks; those that no request holds become free."""
        ...


class KeepRule(Protocol):
    """Decides how long a program's blocks are kept."""

    share: float
    """The largest share of all blocks (0 to 1) that may be kept."""

    def came(self, program: Program, now_s: float) -> None:
        """A turn of a program arrived."""
        ...

    def keep_s(self, program: Program, num_tokens: int, now_s: float, stored_share: float = 0.0) -> float:
        """Seconds for which `num_tokens` of KV of a program whose turn has ended are kept; 0: let go.

        `stored_share` (0 to 1) is what a store is expected to bring back of them if they are let go.
        """
        ...


@dataclass(slots=True)
class _UnderWay:
    began_s: float
    last_s: float
    left_tokens: int = 0


@dataclass(slots=True)
class _Kept:
    blocks: Sequence[int]
    num_tokens: int
    until_s: float
    began_s: float


class KeptPrograms:
    """Knows when programs began, and keeps their blocks between turns within the share of `rule`.

    Blocks are kept from the end of a turn until the next has started, or until their time is up. Residents always get
    what their next step may take: those go first whose time is up first, those of turns that wait already last. The
    job that the plan serves next waits for kept blocks no longer than PATIENCE_S, and not at all while nothing runs.
    Costs: O(kept programs) a step while there are some, and O(blocks of a program) a turn.

    With `has_store` a connector may bring back what the device let go. A store is taken to hold all of a program until
    turns have been looked up.
    """

    def __init__(
        self, blocks: KeptBlocks, rule: KeepRule, num_blocks: int, *, has_store: bool = False
    ) -> None:
        self._blocks = blocks
        self._rule = rule
        self._stored_share = float(has_store)
        self._most_blocks = int(rule.share * num_blocks)
        self._under_way: OrderedDict[Program, _UnderWay] = OrderedDict()
        self._kept: dict[Program, _Kept] = {}
        self._admit: Sequence[Job] = ()
        self.num_blocks = 0

    def __bool__(self) -> bool:
        return bool(self._kept)

    @property
    def next_s(self) -> float:
        """When the next program's time is up; inf if none is kept, or all of them are waiting."""
        return min((kept.until_s for kept in self._kept.values()), default=inf)

    def came(self, job: Job, now_s: float) -> None:
        """A turn arrived: set when its program began; what is kept of the program stays until the turn starts."""
        program = program_of(job)
        if program is None:
            return
        under_way = self._under_way.pop(program, None)
        if under_way is None or job.arrival_s - under_way.last_s > GONE_S:
            under_way = _UnderWay(job.arrival_s, job.arrival_s)
        job.program_began_s, under_way.last_s = under_way.began_s, job.arrival_s
        self._under_way[program] = under_way
        if len(self._under_way) > _MOST_PROGRAMS:
            self._under_way.popitem(last=False)
        self._rule.came(program, now_s)
        if (kept := self._kept.get(program)) is not None:
            kept.until_s, job.num_kept_tokens = inf, kept.num_tokens

    def looked_up(self, job: Job, device_tokens: int, found_tokens: int) -> None:
        """A turn's leading tokens were looked up: on the device, and there or in the store.

        The first look counts, and as much as the device lacks of the turn before.
        """
        program = program_of(job)
        under_way = None if program is None else self._under_way.get(program)
        if under_way is None:
            return
        left_tokens, under_way.left_tokens = under_way.left_tokens, 0
        lacking_tokens = left_tokens - device_tokens
        if lacking_tokens > 0:
            stored_tokens = min(left_tokens, found_tokens) - device_tokens
            wrong_tokens = stored_tokens - self._stored_share * lacking_tokens
            self._stored_share += _NEWEST_WEIGHT * wrong_tokens / left_tokens

    def stepped(self, outcome: StepOutcome) -> None:
        """A step was filled: the turns that it admitted hold their blocks themselves."""
        for job in outcome.admitted:
            self.started(job)
        self._admit = outcome.plan.admit

    def started(self, job: Job) -> None:
        """A turn now holds its blocks itself, or never will."""
        program = program_of(job)
        if program in self._kept:
            self._drop(program)

    def ended(self, job: Job, now_s: float, *, finished: bool) -> None:
        """A turn ends, and still has its blocks if it is resident; `finished`: its program may continue from here."""
        program = program_of(job)
        if program is None:
            return
        self.started(job)
        if not finished or job.state is not JobState.RESIDENT:
            return
        tokens = job.num_computed_tokens
        if program in self._under_way:
            self._under_way[program].left_tokens = tokens
        seconds = self._rule.keep_s(program, tokens, now_s, self._stored_share)
        if not seconds:
            return
        blocks = self._blocks.keep(job)
        self._kept[program] = _Kept(blocks, tokens, now_s + seconds, began_s(job))
        self.num_blocks += len(blocks)
        while self.num_blocks > self._most_blocks:
            self._drop(self._first_to_go())

    def before_step(self, view: StepView) -> None:
        """Free what any step of the residents may take; and what the job that comes next lacks, if none runs or it
        waits long.
        """
        self._make_room(view.now_s, room_blocks(view))
        if view.swapped and not view.residents:
            self.clear()
        first = self._next(view) if self._kept else None
        if first is not None and (not view.residents or view.now_s - first.arrival_s > PATIENCE_S):
            self._give_way(first, view.missing_blocks(first))

    def _next(self, view: StepView) -> Job | None:
        """The first ready job that the last plan could not admit, else the first ready one that waits."""
        planned = (job for job in self._admit if job.state in (JobState.WAITING, JobState.SWAPPED))
        return next(filter(view.ready, chain(planned, view.waiting)), None)

    def clear(self) -> None:
        """Release everything."""
        for program in list(self._kept):
            self._drop(program)

    def _make_room(self, now_s: float, num_blocks: int) -> None:
        """Release the blocks of programs whose time is up, and of more until `num_blocks` are free."""
        while self._kept:
            program = self._first_to_go()
            if self._kept[program].until_s >= now_s and self._blocks.free_blocks >= num_blocks:
                return
            self._drop(program)

    def _give_way(self, job: Job, num_blocks: int) -> None:
        """Release blocks until a job has those that it lacks: the last begun program's first, its own last.

        Its own may be of no use to it: a prompt that was shortened or names another adapter finds none of them.
        """
        enough, own = self._blocks.free_blocks + num_blocks, program_of(job)
        kept = sorted(self._kept, key=lambda program: (program != own, self._kept[program].began_s))
        while kept and self._blocks.free_blocks < enough:
            self._drop(kept.pop())

    def _first_to_go(self) -> Program:
        return min(self._kept, key=lambda program: self._kept[program].until_s)

    def _drop(self, program: Program) -> None:
        kept = self._kept.pop(program)
        self.num_blocks -= len(kept.blocks)
        self._blocks.let_go(kept.blocks)


def began_s(job: Job) -> float:
    """When a job's program began, as far as known; no later than the job's arrival."""
    return job.arrival_s if job.program_began_s is None else job.program_began_s


def room_blocks(view: StepView) -> int:
    """Blocks that suffice for any step of the residents."""
    return len(view.residents) + view.max_tokens // view.block_size
