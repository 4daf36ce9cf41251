"""The one job that ranks before those in time, since it has waited too long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.errors import ConfigError
from headway.policies.order.sorted_index import SortedIndex

_MOST_LOOKED_AT = 128
"""The oldest jobs, among which one that is not in time is looked for."""


class Overdue:
    """The oldest job that is not in time, once it is `patience_s` old: one at a time, at most `share` of all time.

    Under overload there is always somebody who has waited too long, and who is served late takes the time of one who
    could be in time. So whoever had the rank, from its first step with it to its end, is followed by nobody for so
    long that these times make up no more than `share`. The n-th that comes is served, at the latest, when the n - 1
    before it have had the rank to their end, and 1 / `share` times as long has gone by; nobody who comes later can add
    to that. Costs: O(log n) a job; O(1) a step, and a look at the oldest 128 while one waits for its first step.
    """

    def __init__(self, patience_s: float, share: float) -> None:
        if not patience_s >= 0:
            raise ConfigError(f"patience_s is {patience_s}; accepted: 0 or more seconds")
        if not 0 < share <= 1:
            raise ConfigError(f"overdue_share is {share}; accepted: a share of the time above 0, at most 1")
        self.patience_s = patience_s
        self.share = share
        self._by_arrival = SortedIndex()
        self._first: Job | None = None
        self._since_s = self._seen_s = -inf
        self._rest_until_s = -inf

    def add(self, job: Job) -> None:
        """A job has come."""
        self._by_arrival.insert(job, (job.arrival_s, job.id))

    def end(self, job: Job) -> None:
        """Forget a job; if it had the rank, the time that nobody has it begins."""
        self._by_arrival.remove(job, (job.arrival_s, job.id))
        if job is self._first:
            self._first = None
            self._rest_until_s = self._seen_s + (self._seen_s - self._since_s) * (1 / self.share - 1)

    def of(self, now_s: float, on_time: Callable[[Sequence[Job], float], list[Job]]) -> list[Job]:
        """The job with the rank, resident or not: one, or none. `on_time` says who of several can be in time.

        Whoever had it and can be in time after all needs it no more; nobody else has it before that one has ended.
        """
        asked = self._asked(now_s)
        in_time = set(on_time(asked, now_s)) if asked else ()
        return [job for job in asked if job not in in_time][:1]

    def _asked(self, now_s: float) -> Sequence[Job]:
        """Who may have it, the first of them first."""
        if self._first is not None:
            return [self._first]
        long_ago_s = now_s - self.patience_s
        oldest_s = self._by_arrival.at(0).arrival_s if self._by_arrival else inf
        if now_s < self._rest_until_s or oldest_s > long_ago_s:
            return ()
        return [job for job in self._by_arrival.slice(0, _MOST_LOOKED_AT) if job.arrival_s <= long_ago_s]

    def observe(self, outcome: StepOutcome, on_time: Callable[[Sequence[Job], float], list[Job]]) -> None:
        """Note who ran with the rank."""
        self._seen_s = outcome.now_s
        if self._first is None:
            for job in self.of(outcome.now_s, on_time):
                if job in outcome.tokens:
                    self._first, self._since_s = job, outcome.now_s
