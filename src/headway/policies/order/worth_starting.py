"""Which newcomers are worth starting, by what became of those that were started."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from itertools import accumulate
from math import inf

from headway.core.job import Job
from headway.policies.order.latest_start import missed_first_token

_RECENT_JOBS = 200
"""Newcomers that say how much work is little."""
_TELLING_JOBS = 20
"""Newcomers before which nobody is turned down."""
_LOWERED = 0.2
"""So much less of all work is worth starting after an answer that was started in vain."""
_RAISED = 0.005
"""So much more after one that was not: in the long run one in forty is started in vain."""


class WorthStarting:
    """The most work that a newcomer may bring to be started before those that brought less.

    Who had its first token in time, and its others so late that it missed its pace, was started in vain: residents grew
    until memory held them no longer, and one that could have been in time waited for room. So each of those lowers
    the share of all work that is worth starting, that of the smallest newcomers, down to `least_share`, and each that
    kept its pace raises it again. A share of 1 is everybody. O(log _RECENT_JOBS) and a memmove a newcomer; while not
    all are worth starting O(_RECENT_JOBS) for the first question after a change.
    """

    def __init__(self, least_share: float) -> None:
        self._least_share = least_share
        self._share = 1.0
        self._recent_s: deque[float] = deque()
        self._ascending_s: list[float] = []
        self._most_s: float | None = None

    def come(self, work_s: float) -> None:
        """A newcomer brings so much work."""
        if len(self._recent_s) == _RECENT_JOBS:
            oldest_s = self._recent_s.popleft()
            del self._ascending_s[bisect_left(self._ascending_s, oldest_s)]
        self._recent_s.append(work_s)
        insort(self._ascending_s, work_s)
        self._most_s = None

    def finished(self, job: Job, now_s: float) -> None:
        """An answer ends: was it started in vain? One that was late with its first token says nothing."""
        tbt_s, first_s = job.slo.tbt_s, job.first_token_s
        if tbt_s is None or first_s is None or job.num_output_tokens < 2 or missed_first_token(job):
            return
        kept = now_s - first_s <= tbt_s * (job.num_output_tokens - 1)
        share = self._share + (_RAISED if kept else -_LOWERED)
        self._share = min(1.0, max(self._least_share, share))
        self._most_s = None

    @property
    def most_s(self) -> float:
        """The work above which a newcomer comes after those below; inf while everybody is worth starting."""
        if self._share >= 1 or len(self._ascending_s) < _TELLING_JOBS:
            return inf
        if self._most_s is None:
            until_s = list(accumulate(self._ascending_s))
            last = bisect_left(until_s, self._share * until_s[-1])
            self._most_s = self._ascending_s[last]
        return self._most_s
