"""What is written down of one request while it is served: changes alone, and not too many."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from headway.core.job import Job
from headway.core.record import Record
from headway.explain.story import Kind

KEPT_FIRST = 64
KEPT_LAST = 64
"""Marks kept of one request; those between are counted. A request in a plain queue has about five."""
KEPT_DISPLACEMENTS = 16


class Mark(NamedTuple):
    """From now on something else is true of a request.

    `step` is the number of steps with work before the one it was made in, `computed` the tokens computed before
    that one, those lost since included, `outputs` the output tokens known. `why` is its own reason; empty where all
    the others waited or paused for the same. An instant says what it was `then`, if that is known with it. `lost` are
    the computed tokens that are gone again by then.
    """

    at_s: float
    step: int
    computed: int
    outputs: int
    kind: Kind
    why: str = ""
    then: Kind | None = None
    lost: int = 0


class Displacement(NamedTuple):
    """A request's KV left the device: when, of how many tokens, whether the host has it, and who ran instead."""

    at_s: float
    tokens: int
    swapped: bool
    why: str
    by: tuple[str, ...]


class Surroundings(NamedTuple):
    """What those found who had come when a step was planned: when that was, and how many had been before it."""

    at_s: float
    step: int
    others_waiting: int
    residents: int
    max_resident: int
    free_blocks: int


@dataclass(slots=True, eq=False)
class Track:
    """One request's marks and sums. Memory: at most 128 marks and 16 displacements, whatever happens to it.

    `entered_s` is when the scheduler got it. `waited_s` is what it has waited until `waits_from_s`, since when it waits
    again; None while it does not. `restored_blocks` came back from the host; `lost_tokens` had been dropped with its
    KV when that was last looked at. `record` and the number of steps up to then, `end_step`, are there once it has
    ended.
    """

    job: Job
    entered_s: float
    waits_from_s: float | None
    found: Surroundings | None = None
    first: list[Mark] = field(default_factory=list)
    last: deque[Mark] | None = None
    num_marks: int = 0
    waited_s: float = 0.0
    displacements: Sequence[Displacement] = ()
    num_displacements: int = 0
    restored_blocks: int = 0
    lost_tokens: int = 0
    record: Record | None = None
    end_step: int | None = None

    def add(self, mark: Mark) -> None:
        """Keep a mark; if there are too many, one of the middle goes. O(1)."""
        self.num_marks += 1
        if self.num_marks <= KEPT_FIRST:
            self.first.append(mark)
            return
        if self.last is None:
            self.last = deque(maxlen=KEPT_LAST)
        self.last.append(mark)

    def displace(self, displacement: Displacement) -> None:
        """Keep who took its place, if there is room."""
        self.num_displacements += 1
        if len(self.displacements) < KEPT_DISPLACEMENTS:
            self.displacements = (*self.displacements, displacement)

    @property
    def not_kept(self) -> int:
        """Marks between the first and the last that are gone."""
        return self.num_marks - len(self.first) - len(self.last or ())

    @property
    def marks(self) -> Iterator[Mark]:
        """The marks that are kept, in the order of time."""
        return chain(self.first, self.last or ())

    @property
    def computed(self) -> int:
        """Tokens computed so far, those lost since included."""
        return self.job.num_computed_tokens + self.job.recomputed_tokens

    def until_s(self, now_s: float) -> float:
        """When it ended, or now."""
        record = self.record
        return now_s if record is None or record.finished_s is None else record.finished_s

    def waited_until(self, now_s: float) -> float:
        """Seconds it has waited in all, the wait that still goes on included."""
        return self.waited_s + (0.0 if self.waits_from_s is None else now_s - self.waits_from_s)

    def stays(self, until_s: float) -> list[tuple[float, float]]:
        """When it held a seat, from each admission to the loss of its KV or the end."""
        found: list[tuple[float, float]] = []
        since_s: float | None = None
        for mark in self.marks:
            if mark.kind is Kind.ADMITTED:
                since_s = mark.at_s
            elif mark.kind is Kind.PREEMPTED and since_s is not None:
                found.append((since_s, mark.at_s))
                since_s = None
        if since_s is not None:
            found.append((since_s, until_s))
        return found

    def waits(self, until_s: float) -> list[tuple[float, float]]:
        """When it waited, to be admitted for the first time or again; what is not kept of it is left out."""
        found: list[tuple[float, float]] = []
        since_s: float | None = self.job.arrival_s
        for mark in self.marks:
            if mark.kind is Kind.ADMITTED and since_s is not None:
                found.append((since_s, mark.at_s))
                since_s = None
            elif mark.kind is Kind.PREEMPTED:
                since_s = mark.at_s
        if since_s is not None:
            found.append((since_s, until_s))
        return found
