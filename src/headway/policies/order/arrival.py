"""First come, first served."""

from __future__ import annotations

from collections.abc import Sequence

from headway.core.job import Job
from headway.policies.order.sorted_index import KeyedIndex
from headway.policies.protocols import LearnsNothing, Unchanging


class Arrival(Unchanging, LearnsNothing):
    """Newcomers go to the back, preempted jobs to the front, residents stay in order of admission.

    This is vLLM's own queue. Of two jobs preempted in turn the later is first, since it was further ahead. add, remove
    O(log n); top O(k); rank O(1).
    """

    def __init__(self) -> None:
        self._index = KeyedIndex()
        self._front = 0
        self._back = 0

    def add(self, job: Job) -> None:
        """Queue a newcomer at the back, a preempted job at the front."""
        if job.num_preemptions:
            self._front -= 1
            self._index.put(job, (self._front,))
        else:
            self._index.put(job, (self._back,))
            self._back += 1

    def remove(self, job: Job) -> None:
        """Forget a job that no longer waits."""
        self._index.discard(job)

    def end(self, job: Job) -> None:
        """Nothing: the queue keeps only waiting jobs."""

    def touch(self, job: Job) -> None:
        """Nothing: no change of a job moves it in the queue."""

    def top(self, k: int, now_s: float) -> list[Job]:
        """The first k of the queue."""
        return self._index.slice(0, k)

    def rank(self, jobs: Sequence[Job], now_s: float) -> Sequence[Job]:
        """Residents as they are, in order of admission."""
        return jobs
