"""Orders by a job's wait over its size: short jobs gain rank fast, and no job starves."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from math import ceil, inf

from headway.core.cost import CostModel
from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.errors import ConfigError
from headway.policies.order.remaining_work import RemainingWork
from headway.policies.order.sorted_index import KeyedIndex
from headway.policies.protocols import Drifting, LearnsNothing

_Entry = tuple[float, str, int, Job]
"""(arrival, id, size, job): sorts by arrival, then id."""
_EXACT_SIZES = 128
"""Smaller sizes have a queue each; larger ones share 64 queues an octave."""


def bucket_of(size: int) -> int:
    """The queue of a size. Sizes in one queue differ by less than 1/64."""
    shift = max(0, size.bit_length() - _EXACT_SIZES.bit_length() + 1)
    return size >> shift << shift


class WaitIndex:
    """Jobs by (time since arrival) / size, highest first; sizes are positive integers.

    Rankings cross as time passes, so no sorted list stays right. Within one size the oldest is always first, so only
    the heads of the queues, one for each size bucket, compete: top costs O(buckets + k log buckets), with at most 64
    buckets an octave; add and remove O(log n) and one memmove within a queue. A job may come before another with a
    higher value, but never by more than one part in 64.
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
        """Whether a job is queued."""
        return job in self._entries

    def top(self, k: int, now_s: float) -> list[Job]:
        """The first k within the stated error, by a merge of the queues' heads."""
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


def _ranked(entries: list[tuple[float, float, str, Job]]) -> Sequence[Job]:
    entries.sort()
    return [entry[3] for entry in entries]


class WaitedOverLength(Drifting, LearnsNothing):
    """Highest (time since arrival) / (tokens so far) first: short jobs gain rank fast, no job starves.

    Costs and error are those of `WaitIndex`. Source: AdaptiveLLM section 1.2, which leaves open whether output tokens
    count. With `prompt_only` they do not, so a job does not lose rank as it grows.
    """

    def __init__(self, *, prompt_only: bool = False) -> None:
        self.prompt_only = prompt_only
        self._waiting = WaitIndex()

    def add(self, job: Job) -> None:
        """Queue a job among those of its length."""
        self._waiting.add(job, self._length(job))

    def remove(self, job: Job) -> None:
        """Forget a job that no longer waits."""
        self._waiting.remove(job)

    def end(self, job: Job) -> None:
        """Nothing: only waiting jobs are indexed."""

    def touch(self, job: Job) -> None:
        """Index a waiting job anew."""
        if self._waiting.holds(job):
            self.remove(job)
            self.add(job)

    def top(self, k: int, now_s: float) -> list[Job]:
        """The first k waiting jobs, within the stated error."""
        return self._waiting.top(k, now_s)

    def rank(self, jobs: Sequence[Job], now_s: float) -> Sequence[Job]:
        """Sort `jobs` by the same value, exactly; ties by (arrival, id)."""
        # `_length` is inlined, since this runs for every resident of every step.
        outputs = not self.prompt_only
        return _ranked(
            [
                (
                    (job.arrival_s - now_s) / (job.num_prompt_tokens + outputs * job.num_output_tokens),
                    job.arrival_s,
                    job.id,
                    job,
                )
                for job in jobs
            ]
        )

    def value(self, job: Job, now_s: float) -> float:
        """Seconds since arrival for each token: 0 on arrival; higher is served first."""
        return (now_s - job.arrival_s) / self._length(job)

    def _length(self, job: Job) -> int:
        return job.num_prompt_tokens + (0 if self.prompt_only else job.num_output_tokens)


class DeadlineAware(WaitedOverLength):
    """Highest waited / length x urgency first; urgency = the time a target allows / the time left, up to `most`.

    Urgency is 1 on arrival, 2 at half of the time, and `most` near the deadline: enough to pass a queue, too little to
    lock a job out. Without a target, or after a missed one, it is 1: such a job ranks by waited / length alone, so an
    expired deadline is never most urgent. As urgency is bounded, a job of length L that has waited W is passed only by
    jobs that have waited W / (L x most) or more: no job starves. top examines the k highest by waited / length and the
    k next due: O(k log k) and the cost of these two indexes. Source: the future work of AdaptiveLLM (section 1.10, item
    1).
    """

    def __init__(self, most: float = 8.0, *, prompt_only: bool = False) -> None:
        if not 1 <= most < inf:
            raise ConfigError.of("most", most, "1 or more, as a factor")
        super().__init__(prompt_only=prompt_only)
        self.most = most
        self._by_due = KeyedIndex()

    def add(self, job: Job) -> None:
        """Index a job by its wait, and by its next target if it has one."""
        super().add(job)
        if job.due_s is not None:
            self._by_due.put(job, (job.due_s, job.arrival_s, job.id))

    def remove(self, job: Job) -> None:
        """Forget a job that no longer waits."""
        super().remove(job)
        self._by_due.discard(job)

    def top(self, k: int, now_s: float) -> list[Job]:
        """The first k waiting jobs."""
        longest = self._waiting.top(k, now_s)
        late = self._by_due.position((now_s,))
        due = self._by_due.slice(late, late + k)
        return list(self.rank(list(dict.fromkeys([*longest, *due])), now_s)[:k]) if due else longest

    def rank(self, jobs: Sequence[Job], now_s: float) -> Sequence[Job]:
        """Sort `jobs` by the same value, exactly; ties by (arrival, id)."""
        return _ranked([(-self.value(job, now_s), job.arrival_s, job.id, job) for job in jobs])

    def value(self, job: Job, now_s: float) -> float:
        """A job's claim; higher is served first."""
        waited = (now_s - job.arrival_s) / self._length(job)
        due_s = job.due_s
        if due_s is None or due_s < now_s:
            return waited
        allowed_s, left_s = due_s - job.arrival_s, due_s - now_s
        return waited * (self.most if allowed_s >= self.most * left_s else allowed_s / left_s)


SIZES_A_SECOND = 1_000_000
"""Work is indexed in whole microseconds."""


class Hrrn(Drifting):
    """Highest response ratio next: (waited + work) / work, with a job's remaining work by its prediction.

    That is 1 + waited / work, so the ranking is by waited / work, and costs and error are those of `WaitIndex`;
    `RemainingWork` estimates the work. Every job gains rank without bound as it waits, so none starves: one of work w
    that has waited W is passed only by jobs that have waited W / w times their own work. Magnus ranks whole batches by
    this ratio (section 2.7); here it is one request.
    """

    trusts_predictions = True

    def __init__(self, cost: CostModel | None = None) -> None:
        self._work = RemainingWork(cost)
        self._waiting = WaitIndex()

    def add(self, job: Job) -> None:
        """Queue a job among those of its work."""
        self._waiting.add(job, max(1, ceil(self._work.estimate(job) * SIZES_A_SECOND)))

    def remove(self, job: Job) -> None:
        """Remove a job that no longer waits from the queues; its work still ranks it as a resident."""
        self._waiting.remove(job)

    def end(self, job: Job) -> None:
        """Forget a job."""
        self._work.forget(job)

    def finished(self, job: Job) -> None:
        """Learn the usual length of answers without a prediction."""
        self._work.learn(job)

    def touch(self, job: Job) -> None:
        """Estimate a job's work anew."""
        if self._waiting.holds(job):
            self.remove(job)
            self.add(job)
        else:
            self._work.estimate(job)

    def top(self, k: int, now_s: float) -> list[Job]:
        """The first k waiting jobs, within one part in 64."""
        return self._waiting.top(k, now_s)

    def rank(self, jobs: Sequence[Job], now_s: float) -> Sequence[Job]:
        """Sort `jobs` by their ratio; ties by (arrival, id)."""
        work_s = self._work.of
        return _ranked([((job.arrival_s - now_s) / work_s(job), job.arrival_s, job.id, job) for job in jobs])

    def value(self, job: Job, now_s: float) -> float:
        """Seconds waited for each second of work: 0 on arrival; higher is served first."""
        return (now_s - job.arrival_s) / self._work.of(job)

    def observe(self, outcome: StepOutcome) -> None:
        """Estimate the work of jobs anew that have progressed enough, and of some whose estimates are marked as
        outdated.
        """
        self._work.observe(outcome)
        for job in [*self._work.outdated(outcome.tokens), *self._work.next_in_doubt()]:
            self.touch(job)
