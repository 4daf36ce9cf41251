"""Longest wait per token first."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.policies.order.sorted_index import SortedIndex

_EXACT_LENGTHS = 128
"""Lengths below this have a queue of their own; longer ones share one in 64 to the octave."""


def _bucket(num_tokens: int) -> int:
    """The queue of a length: lengths in one bucket differ by less than 1/64."""
    shift = max(0, num_tokens.bit_length() - _EXACT_LENGTHS.bit_length() + 1)
    return num_tokens >> shift << shift


class WaitedOverLength:
    """Highest (time since arrival) / (tokens so far) first: short jobs gain rank fast, no job starves.

    Rankings cross as time passes, so no sorted list stays right. Within one length the oldest is always
    first, so only the heads of the queues, one a length bucket, compete: top costs O(buckets + k log
    buckets), at most 64 buckets an octave. Of two jobs, one may be served before the other although its
    own value is lower, but never by more than one part in 64. Source: AdaptiveLLM section 1.2.
    """

    def __init__(self) -> None:
        self._queues: dict[int, SortedIndex] = {}
        self._bucket_of: dict[Job, int] = {}

    def add(self, job: Job) -> None:
        """Queue a job among those of its length."""
        bucket = _bucket(job.num_tokens)
        self._bucket_of[job] = bucket
        self._queues.setdefault(bucket, SortedIndex()).insert(job, (job.arrival_s, job.id))

    def remove(self, job: Job) -> None:
        """Forget a job that no longer waits."""
        bucket = self._bucket_of.pop(job)
        queue = self._queues[bucket]
        queue.remove(job, (job.arrival_s, job.id))
        if not queue:
            del self._queues[bucket]

    def end(self, job: Job) -> None:
        """Nothing is kept of a job that does not wait."""

    def touch(self, job: Job) -> None:
        """Move a waiting job whose length changed to its new queue."""
        if job in self._bucket_of:
            self.remove(job)
            self.add(job)

    def top(self, k: int, now_s: float) -> list[Job]:
        """The first k waiting jobs, within the stated error: a merge of the queues by their heads."""
        heads = [self._entry(bucket, 0, now_s) for bucket in self._queues]
        heapify(heads)
        first: list[Job] = []
        while heads and len(first) < k:
            *_, job, bucket, at = heads[0]
            first.append(job)
            if at + 1 < len(self._queues[bucket]):
                heapreplace(heads, self._entry(bucket, at + 1, now_s))
            else:
                heappop(heads)
        return first

    def _entry(self, bucket: int, at: int, now_s: float) -> tuple[float, float, str, Job, int, int]:
        """The job at a place of a queue, in heap order: largest value first, then (arrival, id)."""
        job = self._queues[bucket].at(at)
        return ((job.arrival_s - now_s) / job.num_tokens, job.arrival_s, job.id, job, bucket, at)

    def rank(self, jobs: Sequence[Job], now_s: float) -> Sequence[Job]:
        """`jobs` by the same value, exactly."""
        return sorted(jobs, key=lambda job: ((job.arrival_s - now_s) / job.num_tokens, job.arrival_s, job.id))

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn: time and lengths are given."""
