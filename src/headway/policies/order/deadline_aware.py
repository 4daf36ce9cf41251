"""Longest wait per token first, more urgent as a deadline comes near."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.order.sorted_index import Key, SortedIndex
from headway.policies.order.waited_over_length import WaitedOverLength

DEFAULT_MOST = 8.0
"""Eight times the share of a job without a target: enough to pass a queue, too little to lock anybody out."""


class DeadlineAware:
    """Highest waited / length x urgency first; urgency = all the time a target allows / the time left, up to `most`.

    On arrival urgency is 1, at half of the time 2, near the deadline `most`. A target that is missed, or was
    never set, counts 1: such a job ranks by waited / length alone, so an expired deadline is never most urgent.
    As urgency is bounded, a job of length L that has waited W is passed over only by jobs that have waited
    W / (L x most) or more: no job starves. Without targets this is `waited-over-length`, with its
    `prompt_only`. top looks at the k highest by waited / length and the k next due, no further: O(k log k) and
    the cost of these two indexes.
    Source: the future work of AdaptiveLLM (section 1.10, item 1).
    """

    def __init__(self, most: float = DEFAULT_MOST, *, prompt_only: bool = False) -> None:
        if not 1 <= most < inf:
            raise ConfigError(f"most is {most}; accepted: 1 or more, as a factor")
        self.most = most
        self.prompt_only = prompt_only
        self._by_wait = WaitedOverLength(prompt_only=prompt_only)
        self._by_due = SortedIndex()
        self._due_keys: dict[Job, Key] = {}

    def add(self, job: Job) -> None:
        """Index a job by its wait, and by its next target if it has one."""
        self._by_wait.add(job)
        if job.due_s is not None:
            self._due_keys[job] = (job.due_s, job.arrival_s, job.id)
            self._by_due.insert(job, self._due_keys[job])

    def remove(self, job: Job) -> None:
        """Forget a job that no longer waits."""
        self._by_wait.remove(job)
        key = self._due_keys.pop(job, None)
        if key is not None:
            self._by_due.remove(job, key)

    def end(self, job: Job) -> None:
        """Nothing is kept of a job that does not wait."""

    def touch(self, job: Job) -> None:
        """Index a waiting job whose length or next target changed anew."""
        if self._by_wait.holds(job):
            self.remove(job)
            self.add(job)

    def top(self, k: int, now_s: float) -> list[Job]:
        """The first k waiting jobs."""
        longest = self._by_wait.top(k, now_s)
        late = self._by_due.position((now_s,))
        due = self._by_due.slice(late, late + k)
        return list(self.rank(list(dict.fromkeys([*longest, *due])), now_s)[:k]) if due else longest

    def rank(self, jobs: Sequence[Job], now_s: float) -> Sequence[Job]:
        """`jobs` by the same value, exactly; ties by (arrival, id)."""
        entries = [(-self.value(job, now_s), job.arrival_s, job.id, job) for job in jobs]
        entries.sort()
        return [entry[3] for entry in entries]

    def value(self, job: Job, now_s: float) -> float:
        """A job's claim; higher is served first."""
        waited = self._by_wait.value(job, now_s)
        due_s = job.due_s
        if due_s is None or due_s < now_s:
            return waited
        allowed_s, left_s = due_s - job.arrival_s, due_s - now_s
        return waited * (self.most if allowed_s >= self.most * left_s else allowed_s / left_s)

    def next_change_s(self, view: StepView) -> float:
        """Not known: rankings cross as time passes and answers grow."""
        return -inf

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn: time, lengths and targets are given."""
