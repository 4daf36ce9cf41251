"""An order by a key that is fixed while a job waits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.policies.order.sorted_index import Key, SortedIndex


class KeyedOrder(ABC):
    """Ascending `key`; a subclass says only what the key is. top is O(k), rank O(n log n)."""

    def __init__(self) -> None:
        self._index = SortedIndex()

    @abstractmethod
    def key(self, job: Job) -> Key:
        """Smallest first; must end in (arrival_s, id)."""

    def add(self, job: Job) -> None:
        """Index a job that starts to wait."""
        self._index.insert(job, self.key(job))

    def remove(self, job: Job) -> None:
        """Forget a job that no longer waits."""
        self._index.remove(job)

    def touch(self, job: Job) -> None:
        """Re-index a waiting job whose key changed."""
        self._index.remove(job)
        self._index.insert(job, self.key(job))

    def top(self, k: int, now_s: float) -> list[Job]:
        """The first k waiting jobs."""
        return self._index.slice(0, k)

    def rank(self, jobs: Sequence[Job], now_s: float) -> Sequence[Job]:
        """`jobs` in key order."""
        return sorted(jobs, key=self.key)

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn: the keys are given."""
