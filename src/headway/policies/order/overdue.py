"""The one job that ranks before all others, since it has waited too long."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import islice, takewhile
from math import inf

from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.errors import ConfigError
from headway.policies.order.sorted_index import SortedIndex

_MOST_LOOKED_AT = 128
"""The oldest jobs that are left out, among which one that is not in time is looked for."""


class Overdue:
    """The oldest job that is left out and not in time, once it is `patience_s` old: one at a time, for `share` of time.

    A job is left out while the last step had nothing of it: it waits, or is paused. Once chosen a job keeps the rank to
    its end, so that nothing that was displaced for it takes its place again, unless it turns out to be in time.

    Under overload some job has always waited too long, and to serve it late takes the time of one that could be in
    time. So after each holder's end no job holds the rank until the time from the holder's first step with it to that
    end is at most `share` of all. The n-th job that comes is served, at the latest, when the n - 1 before it have had
    the rank to their end, and 1 / `share` times as long has gone by; jobs that come later add nothing to that. Costs:
    O(log n) a job; O(1) a step, and O(batch + 128) while the rank is free and some job is old enough.
    """

    def __init__(self, patience_s: float, share: float) -> None:
        if not patience_s >= 0:
            raise ConfigError.of("patience_s", patience_s, "0 or more seconds")
        if not 0 < share <= 1:
            raise ConfigError.of("overdue_share", share, "a share of the time above 0, at most 1")
        self.patience_s = patience_s
        self.share = share
        self._by_arrival = SortedIndex()
        self._ran: Collection[Job] = ()
        self._holder: Job | None = None
        self._since_s = inf
        self._seen_s = self._rest_until_s = -inf

    def add(self, job: Job) -> None:
        """A job has come."""
        self._by_arrival.insert(job, (job.arrival_s, job.id))

    def end(self, job: Job) -> None:
        """Forget a job; if it had the rank, the time in which no job has it begins."""
        self._by_arrival.remove(job, (job.arrival_s, job.id))
        if job in self._ran:
            self._ran = [one for one in self._ran if one is not job]
        if job is self._holder:
            self._give_back()

    def of(self, now_s: float, on_time: Callable[[Sequence[Job], float], list[Job]]) -> list[Job]:
        """The job with the rank, resident or not: one, or none. `on_time` says which of several can be in time."""
        asked = self._asked(now_s)
        in_time = set(on_time(asked, now_s)) if asked else ()
        return [job for job in asked if job not in in_time][:1]

    def _asked(self, now_s: float) -> Sequence[Job]:
        """The jobs that may have it, the first of them first."""
        if self._holder is not None:
            return [self._holder]
        long_ago_s = now_s - self.patience_s
        oldest_s = self._by_arrival.at(0).arrival_s if self._by_arrival else inf
        if now_s < self._rest_until_s or oldest_s > long_ago_s:
            return ()
        left_out = (job for job in self._by_arrival if job not in self._ran)
        old_enough = takewhile(lambda job: job.arrival_s <= long_ago_s, left_out)
        return list(islice(old_enough, _MOST_LOOKED_AT))

    def observe(self, outcome: StepOutcome, on_time: Callable[[Sequence[Job], float], list[Job]]) -> None:
        """Note which job had the rank in this step, and since when it runs with it."""
        self._seen_s = outcome.now_s
        found = self.of(outcome.now_s, on_time)
        if self._holder is not None and not found:
            self._give_back()
        elif found:
            self._holder = found[0]
            if self._holder in outcome.tokens:
                self._since_s = min(self._since_s, outcome.now_s)
        self._ran = outcome.tokens

    def _give_back(self) -> None:
        """No job has the rank until the time since its holder's first step is `share` of all time since then."""
        if self._since_s < inf:
            self._rest_until_s = self._seen_s + (self._seen_s - self._since_s) * (1 / self.share - 1)
        self._holder, self._since_s = None, inf
