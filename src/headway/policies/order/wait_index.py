"""Queued jobs by their wait over a size of their own: a merge of short queues, since rankings cross."""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heapify, heappop, heapreplace

from headway.core.job import Job

_Entry = tuple[float, str, int, Job]
"""(arrival, id, size, job): sorts by arrival, then id."""
_EXACT_SIZES = 128
"""Sizes below this have a queue of their own; larger ones share one in 64 to the octave."""


def bucket_of(size: int) -> int:
    """The queue of a size: sizes in one bucket differ by less than 1/64."""
    shift = max(0, size.bit_length() - _EXACT_SIZES.bit_length() + 1)
    return size >> shift << shift


class WaitIndex:
    """Jobs by (time since arrival) / size, the highest first; sizes are whole numbers above 0.

    Rankings cross as time passes, so no sorted list stays right. Within one size the oldest is always
    first, so only the heads of the queues, one a size bucket, compete: top costs O(buckets + k log
    buckets), at most 64 buckets an octave; add and remove O(log n) and one memmove within a queue. Of two jobs,
    one may come before the other although its own value is lower, but never by more than one part in 64.
    """

    def __init__(self) -> None:
        self._queues: dict[int, list[_Entry]] = {}
        self._entries: dict[Job, tuple[int, _Entry]] = {}

    def add(self, job: Job, size: int) -> None:
        """Queue a job among those of its size."""
        bucket = bucket_of(size)
        entry = (job.arrival_s, job.id, size, job)
        self._entries[job] = (bucket, entry)
        insort(self._queues.setdefault(bucket, []), entry)

    def remove(self, job: Job) -> None:
        """Forget a job."""
        bucket, entry = self._entries.pop(job)
        queue = self._queues[bucket]
        del queue[bisect_left(queue, entry)]
        if not queue:
            del self._queues[bucket]

    def holds(self, job: Job) -> bool:
        """Whether a job is in."""
        return job in self._entries

    def top(self, k: int, now_s: float) -> list[Job]:
        """The first k, within the stated error: a merge of the queues by their heads."""
        heads = [((queue[0][0] - now_s) / queue[0][2], queue[0], queue, 0) for queue in self._queues.values()]
        heapify(heads)
        first: list[Job] = []
        while heads and len(first) < k:
            _, entry, queue, at = heads[0]
            first.append(entry[3])
            at += 1
            if at < len(queue):
                heapreplace(heads, ((queue[at][0] - now_s) / queue[at][2], queue[at], queue, at))
            else:
                heappop(heads)
        return first
