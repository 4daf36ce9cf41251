"""How much work a newcomer brings of late."""

from __future__ import annotations

from math import fsum

_RECENT_JOBS = 400
"""Newcomers that say what is usual, so that it follows the traffic and the machine."""
_CHANGED = 2.0
"""What is usual stays as it is until newcomers bring so many times as much, or as little."""


class UsualWork:
    """A unit of work: about the mean of what newcomers of late were estimated to bring; those long ago fade.

    It changes in steps, so that what was measured by it can be measured anew. Those that come between two steps count
    alike, whoever came first. O(1) a job.
    """

    def __init__(self) -> None:
        self._unit_s = 0.0
        self._mean_s = 0.0
        self._num_seen = 0
        self._new_s: list[float] = []

    def learn(self, work_s: float) -> None:
        """A job came with so much work."""
        self._new_s.append(work_s)

    def times(self, work_s: float) -> float:
        """So much work, in units; in seconds before the first step."""
        return work_s / self._unit_s if self._unit_s else work_s

    def settle(self) -> bool:
        """After a step: take the newcomers in. Whether the unit has changed."""
        if not self._new_s:
            return False
        count, new_s = len(self._new_s), fsum(self._new_s)
        self._new_s.clear()
        self._num_seen = min(self._num_seen + count, _RECENT_JOBS)
        self._mean_s += (new_s / count - self._mean_s) * min(1.0, count / self._num_seen)
        if self._unit_s / _CHANGED < self._mean_s < self._unit_s * _CHANGED or not self._mean_s:
            return False
        self._unit_s = self._mean_s
        return True
