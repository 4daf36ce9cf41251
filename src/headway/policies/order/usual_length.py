"""How long answers are of late, for those that nobody predicted."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Sequence
from math import sqrt

from headway.core.length_estimate import TAIL, UNKNOWN_SPREAD, LengthEstimate

_RECENT_ANSWERS = 400
"""Finished answers that say what is usual, so that it follows the traffic."""
_TELLING_ANSWERS = 5
"""Finished answers before which they say nothing of how unlike they are."""
_LEAST_SPREAD = 1.1
_MOST_SPREAD = 3.0
"""The wider the interval, the sooner newcomers go before those that run, as in feedback queues."""


class UsualLength:
    """The length of answers of late: one by one, and as one estimate.

    The estimate lies around their mean, since that is what a server that knows nothing else pays on average, and is as
    wide as eight in ten of them lie apart, up to _MOST_SPREAD either way. Until five have ended the interval is a
    factor of two. An answer costs O(log _RECENT_ANSWERS) and a memmove; asked often between two ends, it remembers.
    """

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=_RECENT_ANSWERS)
        self._ascending: list[int] = []
        self._estimate: LengthEstimate | None = None

    def learn(self, tokens: int) -> None:
        """An answer came to its end with so many tokens; none counts as one."""
        if len(self._recent) == _RECENT_ANSWERS:
            del self._ascending[bisect_left(self._ascending, self._recent[0])]
        self._recent.append(max(1, tokens))
        insort(self._ascending, max(1, tokens))
        self._estimate = None

    @property
    def estimate(self) -> LengthEstimate | None:
        """What to expect of an answer; None before the first has ended."""
        if self._estimate is None and self._recent:
            mean, spread = sum(self._recent) / len(self._recent), self._spread
            self._estimate = LengthEstimate(mean, mean / spread, mean * spread)
        return self._estimate

    @property
    def _spread(self) -> float:
        """The factor either way beyond which one in ten lies."""
        count = len(self._ascending)
        if count < _TELLING_ANSWERS:
            return UNKNOWN_SPREAD
        low, high = self._ascending[int(TAIL * count)], self._ascending[int((1 - TAIL) * count)]
        return min(max(_LEAST_SPREAD, sqrt(high / low)), _MOST_SPREAD)

    def longer_than(self, produced: int, points: int) -> Sequence[int]:
        """Lengths of late that are longer, ascending; `points` that stand for them if there are more. O(points)."""
        ascending = self._ascending
        start, count = bisect_right(ascending, produced), len(ascending)
        if count - start <= points:
            return ascending[start:]
        apart = (count - start) / points
        return [ascending[start + int((part + 0.5) * apart)] for part in range(points)]
