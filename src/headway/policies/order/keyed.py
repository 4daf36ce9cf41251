"""An order by a key that changes only when a job is touched."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import inf
from typing import Protocol

from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.core.view import StepView
from headway.policies.order.sorted_index import Key, SortedIndex


class Index(Protocol):
    """What waiting jobs stand in, by key (see `SortedIndex`)."""

    def insert(self, job: Job, key: Key) -> None:
        """Put a job in its place."""
        ...

    def remove(self, job: Job, key: Key) -> None:
        """Take out a job that is in, under the key it was inserted with."""
        ...

    def holds(self, job: Job, key: Key) -> bool:
        """Whether a job is in under this key."""
        ...

    def rekey(self, keys: Mapping[Job, Key]) -> None:
        """Put all that are in where these keys have them."""
        ...

    def slice(self, start: int, stop: int) -> list[Job]:
        """Jobs `start` to `stop` in order."""
        ...


class KeyedOrder(ABC):
    """Ascending `key`; a subclass says only what the key is. top is O(k), rank O(n log n) without calls."""

    def __init__(self) -> None:
        self._index: Index = SortedIndex()
        self._keys: dict[Job, Key] = {}

    def __contains__(self, job: Job) -> bool:
        return job in self._keys

    @abstractmethod
    def key(self, job: Job) -> Key:
        """Smallest first; must end in (arrival_s, id)."""

    def add(self, job: Job) -> None:
        """Index a job that starts to wait."""
        self._keys[job] = self.key(job)
        self._index.insert(job, self._keys[job])

    def remove(self, job: Job) -> None:
        """Take a job that no longer waits out of the index; its key still ranks it as a resident."""
        self._index.remove(job, self._keys[job])

    def end(self, job: Job) -> None:
        """Forget a job."""
        del self._keys[job]

    def touch(self, job: Job) -> None:
        """Take a job's key anew."""
        old, new = self._keys[job], self.key(job)
        self._keys[job] = new
        if self._index.holds(job, old):
            self._index.remove(job, old)
            self._index.insert(job, new)

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
