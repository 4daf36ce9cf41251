"""What was true of all requests of an engine at once, step by step, in a memory that does not grow."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from itertools import islice, pairwise
from operator import itemgetter
from typing import NamedTuple

KEPT_STEPS = 1 << 15
"""Steps kept: 11 minutes at 20 ms each, in 400 kB."""
KEPT_CHANGES = 4096


class Change(NamedTuple):
    """From now on, all who waited (or paused) did so for another reason; `by` is the id of who stood before them."""

    at_s: float
    step: int
    why: str
    by: str


_at_s = itemgetter(0)


class StepLog:
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
        """Least and greatest width of the steps `start` to `end` (exclusive); None where none of them is kept."""
        start, end = max(start, self.count - self._kept), min(end, self.count)
        if start >= end:
            return None
        first, last, ring = start % self._kept, (end - 1) % self._kept + 1, self._widths
        found = ring[first:last] if first < last else ring[first:] + ring[:last]
        return min(found), max(found)

    def times_s(self, most: int) -> list[float]:
        """When the last steps were scheduled, at most so many, in order."""
        kept = range(max(0, self.count - min(most, self._kept)), self.count)
        return [self._times_s[step % self._kept] for step in kept]


class ChangeLog:
    """What everybody waited for, from change to change; the last KEPT_CHANGES of them. O(1) a step."""

    def __init__(self, kept: int = KEPT_CHANGES) -> None:
        self._changes: deque[Change] = deque(maxlen=kept)
        self._why, self._by = "", ""

    def note(self, at_s: float, step: int, why: str, by: str = "") -> None:
        """What is true in this step; nothing if it was true before."""
        if why != self._why or by != self._by:
            self._why, self._by = why, by
            self._changes.append(Change(at_s, step, why, by))

    def between(self, start_s: float, end_s: float) -> list[Change]:
        """The change that was in force at `start_s`, and those up to `end_s` (exclusive), in order."""
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
