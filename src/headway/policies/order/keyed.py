"""Orders by a key that changes only when a job is touched."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headway.core.job import Job
from headway.policies.order.sorted_index import Key, SortedIndex
from headway.policies.protocols import LearnsNothing, Unchanging

if TYPE_CHECKING:
    from headway.policies.order.tenants import TenantQueues


class KeyedOrder(Unchanging, LearnsNothing, ABC):
    """Ascending `key`; a subclass defines only the key. top is O(k), rank O(n log n) without calls."""

    def __init__(self) -> None:
        self._index: SortedIndex | TenantQueues = SortedIndex()
        self._keys: dict[Job, Key] = {}

    def __contains__(self, job: Job) -> bool:
        return job in self._keys

    @abstractmethod
    def key(self, job: Job) -> Key:
        """The sort key, smallest first; must end in (arrival_s, id)."""

    def add(self, job: Job) -> None:
        """Index a job that starts to wait."""
        self._keys[job] = self.key(job)
        self._index.insert(job, self._keys[job])

    def remove(self, job: Job) -> None:
        """Remove a job that no longer waits from the index; its key still ranks it as a resident."""
        self._index.remove(job, self._keys[job])

    def end(self, job: Job) -> None:
        """Forget a job."""
        del self._keys[job]

    def touch(self, job: Job) -> None:
        """Compute a job's key again."""
        old, new = self._keys[job], self.key(job)
        self._keys[job] = new
        if self._index.holds(job, old):
            self._index.remove(job, old)
            self._index.insert(job, new)

    def top(self, k: int, now_s: float) -> list[Job]:
        """The first k waiting jobs."""
        return self._index.slice(0, k)

    def rank(self, jobs: Sequence[Job], now_s: float) -> Sequence[Job]:
        """Sort `jobs` by key."""
        return self.ranked(jobs)

    def ranked(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Sort `jobs` by their keys as last computed."""
        return sorted(jobs, key=self._keys.__getitem__)


class Priority(KeyedOrder):
    """Lowest `priority` value first, as vLLM's own priority policy."""

    def key(self, job: Job) -> Key:
        """(priority, arrival, id)."""
        return (job.priority, job.arrival_s, job.id)


class ShortestPrompt(KeyedOrder):
    """Fewest prompt tokens first (SJF by prefill work; Ascendra section 3.5). Long prompts can starve."""

    def key(self, job: Job) -> Key:
        """(prompt tokens, arrival, id)."""
        return (job.num_prompt_tokens, job.arrival_s, job.id)


class LongestPrompt(KeyedOrder):
    """Most prompt tokens first (LJF; Ascendra section 3.5). Short prompts can starve."""

    def key(self, job: Job) -> Key:
        """(minus prompt tokens, arrival, id)."""
        return (-job.num_prompt_tokens, job.arrival_s, job.id)
