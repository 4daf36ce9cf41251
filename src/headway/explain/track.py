"""The notes on one request, and on all requests of an engine together, taken while they are served."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise
from operator import itemgetter
from typing import NamedTuple

from headway.core.job import Job
from headway.core.record import Record
from headway.explain.story import Kind

KEPT_STEPS = 1 << 15
"""Steps kept: 11 minutes at 20 ms each, in 400 kB."""
KEPT_CHANGES = 4096


class Change(NamedTuple):
    """From now on, all waiting (or paused) jobs had another reason; `by` is the id of the job ahead of them."""

    at_s: float
    step: int
    why: str
    by: str


_at_s = itemgetter(0)


class StepHistory:
    """When each step with work was scheduled and how many jobs it ran; the last KEPT_STEPS of them. O(1) a step."""

    def __init__(self, kept: int = KEPT_STEPS) -> None:
        self._times_s = array("d", bytes(8 * kept))
        self._widths = array("i", bytes(4 * kept))
        self._kept = kept
        self.count = 0

    def add(self, at_s: float, width: int) -> None:
        """A step was scheduled."""
        place = self.count % self._kept
        self._times_s[place] = at_s
        self._widths[place] = width
        self.count += 1

    def widths(self, start: int, end: int) -> tuple[int, int] | None:
        """Least and greatest width of the steps `start` to `end` (exclusive); None if none of them is kept."""
        start, end = max(start, self.count - self._kept), min(end, self.count)
        if start >= end:
            return None
        first, last, ring = start % self._kept, (end - 1) % self._kept + 1, self._widths
        found = ring[first:last] if first < last else ring[first:] + ring[:last]
        return min(found), max(found)

    def times_s(self, most: int) -> list[float]:
        """When the last steps were scheduled, at most `most`, in order."""
        kept = range(max(0, self.count - min(most, self._kept)), self.count)
        return [self._times_s[step % self._kept] for step in kept]


class ChangeLog:
    """What all requests waited for, by change; the last KEPT_CHANGES of them. O(1) a step."""

    def __init__(self, kept: int = KEPT_CHANGES) -> None:
        self._changes: deque[Change] = deque(maxlen=kept)
        self._why, self._by = "", ""

    def note(self, at_s: float, step: int, why: str, by: str = "") -> None:
        """Note the state of this step, unless it equals the previous one."""
        if why != self._why or by != self._by:
            self._why, self._by = why, by
            self._changes.append(Change(at_s, step, why, by))

    def between(self, start_s: float, end_s: float) -> list[Change]:
        """The change in force at `start_s`, and those up to `end_s` (exclusive), in order."""
        first = bisect_right(self._changes, start_s, key=_at_s) - 1
        return list(islice(self._changes, max(0, first), bisect_left(self._changes, end_s, key=_at_s)))

    def spent_s(self, start_s: float, end_s: float) -> dict[str, float]:
        """Seconds between two times by reason, as far back as changes are kept."""
        changes = self.between(start_s, end_s)
        times_s = [*(max(change.at_s, start_s) for change in changes), end_s]
        spent_s: dict[str, float] = {}
        for change, (from_s, until_s) in zip(changes, pairwise(times_s), strict=True):
            spent_s[change.why] = spent_s.get(change.why, 0.0) + until_s - from_s
        return spent_s


KEPT_FIRST = 64
KEPT_LAST = 64
"""Marks kept of one request; those in between are only counted. A request in a plain queue has about five."""
KEPT_DISPLACEMENTS = 16


class Mark(NamedTuple):
    """From now on something else is true of a request.

    `step` is the number of steps with work before this one, `computed` the tokens computed until then, including lost
    ones, `outputs` the known output tokens. `why` is its own reason; empty if it shares the reason of all waiting or
    paused jobs. An instant has the following state in `then`, if known. `lost` are the computed tokens lost by then.
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
    """A request's KV left the device: when, how many tokens, whether the host has it, and what ran instead."""

    at_s: float
    tokens: int
    swapped: bool
    why: str
    by: tuple[str, ...]


class Surroundings(NamedTuple):
    """What newcomers found when a step was planned: the time, and how many jobs were ahead of them."""

    at_s: float
    step: int
    others_waiting: int
    residents: int
    max_resident: int
    free_blocks: int


class TurnBefore(NamedTuple):
    """A program's previous turn: when its answer ended, and the tokens of prompt and answer."""

    ended_s: float
    num_tokens: int


@dataclass(slots=True, eq=False)
class Track:
    """One request's marks and sums. Memory: at most 128 marks and 16 displacements, whatever happens to it.

    `entered_s` is when the scheduler got it. `waited_s` is its waiting up to `waits_from_s`, since when it waits again;
    None while it does not. `before` is its program's previous turn. `restored_blocks` came back from the host;
    `lost_tokens` had been dropped with its KV at the last check. `record` and `end_step`, the number of steps up to
    then, are set once it has ended.
    """

    job: Job
    entered_s: float
    waits_from_s: float | None
    before: TurnBefore | None = None
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
        """Keep a mark; if there are too many, one in the middle is dropped. O(1)."""
        self.num_marks += 1
        if self.num_marks <= KEPT_FIRST:
            self.first.append(mark)
            return
        if self.last is None:
            self.last = deque(maxlen=KEPT_LAST)
        self.last.append(mark)

    def displace(self, displacement: Displacement) -> None:
        """Keep the request that took its place, if there is room."""
        self.num_displacements += 1
        if len(self.displacements) < KEPT_DISPLACEMENTS:
            self.displacements = (*self.displacements, displacement)

    @property
    def not_kept(self) -> int:
        """Marks in the middle that were dropped."""
        return self.num_marks - len(self.first) - len(self.last or ())

    @property
    def marks(self) -> Iterator[Mark]:
        """The kept marks, in order of time."""
        return chain(self.first, self.last or ())

    @property
    def computed(self) -> int:
        """Tokens computed so far, including lost ones."""
        return self.job.num_computed_tokens + self.job.recomputed_tokens

    def until_s(self, now_s: float) -> float:
        """When it ended, or now."""
        record = self.record
        return now_s if record is None or record.finished_s is None else record.finished_s

    def waited_until(self, now_s: float) -> float:
        """Seconds it has waited in all, including a current wait."""
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
        """When it waited to be admitted, for the first time or again; what was not kept is left out."""
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
