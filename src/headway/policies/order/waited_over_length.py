"""Longest wait per token first."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from math import inf

from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.core.view import StepView

_Entry = tuple[float, str, int, Job]
"""(arrival, id, tokens, job): sorts by arrival, then id."""
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
    own value is lower, but never by more than one part in 64. Source: AdaptiveLLM section 1.2, which leaves
    open whether output tokens count: with `prompt_only` they do not, so a job does not lose rank as it grows.
    """

    def __init__(self, *, prompt_only: bool = False) -> None:
        self.prompt_only = prompt_only
        self._queues: dict[int, list[_Entry]] = {}
        self._entries: dict[Job, tuple[int, _Entry]] = {}

    def add(self, job: Job) -> None:
        """Queue a job among those of its length."""
        length = self._length(job)
        bucket = _bucket(length)
        entry = (job.arrival_s, job.id, length, job)
        self._entries[job] = (bucket, entry)
        insort(self._queues.setdefault(bucket, []), entry)

    def remove(self, job: Job) -> None:
        """Forget a job that no longer waits."""
        bucket, entry = self._entries.pop(job)
        queue = self._queues[bucket]
        del queue[bisect_left(queue, entry)]
        if not queue:
            del self._queues[bucket]

    def end(self, job: Job) -> None:
        """Nothing is kept of a job that does not wait."""

    def touch(self, job: Job) -> None:
        """Move a waiting job whose length changed to its new queue."""
        if self.holds(job):
            self.remove(job)
            self.add(job)

    def holds(self, job: Job) -> bool:
        """Whether a job waits."""
        return job in self._entries

    def top(self, k: int, now_s: float) -> list[Job]:
        """The first k waiting jobs, within the stated error: a merge of the queues by their heads."""
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

    def rank(self, jobs: Sequence[Job], now_s: float) -> Sequence[Job]:
        """`jobs` by the same value, exactly."""
        # Spelled out rather than `_length`: this runs for every resident of every step.
        outputs = not self.prompt_only
        entries = [
            (
                (job.arrival_s - now_s) / (job.num_prompt_tokens + outputs * job.num_output_tokens),
                job.arrival_s,
                job.id,
                job,
            )
            for job in jobs
        ]
        entries.sort()
        return [entry[3] for entry in entries]

    def value(self, job: Job, now_s: float) -> float:
        """Seconds since arrival for each token: 0 on arrival, higher first."""
        return (now_s - job.arrival_s) / self._length(job)

    def _length(self, job: Job) -> int:
        return job.num_prompt_tokens + (0 if self.prompt_only else job.num_output_tokens)

    def next_change_s(self, view: StepView) -> float:
        """Not known: rankings cross as time passes and answers grow."""
        return -inf

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn: time and lengths are given."""
