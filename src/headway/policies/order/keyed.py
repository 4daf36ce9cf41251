"""An order by a key that changes only when a job is touched."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from math import inf

from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.core.view import StepView
from headway.policies.order.sorted_index import Key, SortedIndex


class KeyedOrder(ABC):
    """Ascending `key`; a subclass says only what the key is. top is O(k), rank O(n log n) without calls."""

    def __init__(self) -> None:
        self._index = SortedIndex()
        self._keys: dict[Job, Key] = {}

    def __contains__(self, job: Job) -> bool:
        return job in self._keys

    @abstractmethod
    def key(self, job: Job) -> Key:
        """Smallest first; must end in (arrival_s, id)."""

    def _queue_of(self, job: Job) -> SortedIndex:
        """The index that a job waits in."""
        return self._index

    def _all_queues(self) -> Iterable[SortedIndex]:
        """Every index that jobs wait in."""
        return (self._index,)

    def add(self, job: Job) -> None:
        """Index a job that starts to wait."""
        self._keys[job] = self.key(job)
        self._queue_of(job).insert(job, self._keys[job])

    def remove(self, job: Job) -> None:
        """Take a job that no longer waits out of the index; its key still ranks it as a resident."""
        self._queue_of(job).remove(job, self._keys[job])

    def end(self, job: Job) -> None:
        """Forget a job."""
        del self._keys[job]

    def touch(self, job: Job) -> None:
        """Take a job's key anew."""
        old, new = self._keys[job], self.key(job)
        self._keys[job] = new
        queue = self._queue_of(job)
        if queue.holds(job, old):
            queue.remove(job, old)
            queue.insert(job, new)

    def top(self, k: int, now_s: float) -> list[Job]:
        """The first k waiting jobs."""
        return self._index.slice(0, k)

    def rank(self, jobs: Sequence[Job], now_s: float) -> Sequence[Job]:
        """`jobs` in key order."""
        return self.ranked(jobs)

    def ranked(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """`jobs` by the keys as they are."""
        return sorted(jobs, key=self._keys.__getitem__)

    def next_change_s(self, view: StepView) -> float:
        """Never: no place depends on the time or on tokens."""
        return inf

    def observe(self, outcome: StepOutcome) -> None:  # noqa: B027 - most keys are given, not learned
        """Nothing to learn."""
