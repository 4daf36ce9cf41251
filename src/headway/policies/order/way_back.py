"""How long it takes of late to get memory back."""

from __future__ import annotations

from collections.abc import Iterable

from headway.core.job import Job
from headway.core.plan import StepOutcome

LEAST_S = 3.0
"""Whoever is to do without memory has so long to spare at least: one that is gone for less has lost nothing."""
_TIMES = 2.0
"""The next way back may take twice as long as those of late."""
_NEWEST_SHARE = 0.1
"""Weight of the newest way back in their running mean."""


class WayBack:
    """How long those that lost their KV while they were in time had none of late, those that have none yet included.

    The mean of those that came back, or as long as the one that has been away longest has been, whichever is more:
    under overload few come back, and they are the ones that were not away for long. O(1) a job that leaves, comes back
    or ends, and for an answer.
    """

    def __init__(self) -> None:
        self._left_s: dict[Job, float] = {}
        """Those that are away by when they left, which is the order of this dict too."""
        self._mean_s = 0.0

    def observe(self, outcome: StepOutcome, in_time: Iterable[Job]) -> None:
        """Follow a step, whose preempted jobs were those `in_time` and others."""
        for job in outcome.admitted:
            if job in self._left_s:
                away_s = outcome.now_s - self._left_s.pop(job)
                self._mean_s += (away_s - self._mean_s) * _NEWEST_SHARE
        self._left_s |= dict.fromkeys(in_time, outcome.now_s)

    def end(self, job: Job) -> None:
        """Forget a job."""
        self._left_s.pop(job, None)

    def likely_until_s(self, now_s: float) -> float:
        """By when one that leaves now is back, if its way back is no more than twice as long as others' were."""
        longest_s = now_s - next(iter(self._left_s.values()), now_s)
        return now_s + max(LEAST_S, _TIMES * max(self._mean_s, longest_s))
