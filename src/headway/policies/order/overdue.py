"""Reserves a share of the engine for the jobs that have been left out longest."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice, takewhile
from math import inf

from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.errors import ConfigError

LEAST_SHARE = 0.01
_MOST_TIMES = 30.0


def overdue_share(tail: float) -> float:
    """Share of the engine for overdue jobs: a hundredth up to `tail` 0.5, then growing to 0.3 at 1."""
    return LEAST_SHARE * float(_MOST_TIMES ** max(0.0, 2 * tail - 1))


_MOST_LOOKED_AT = 32
"""The oldest left-out jobs that are examined for one that is not in time."""

InTime = Callable[[Sequence[Job], float], list[Job]]
"""Returns which of some jobs are in time."""


class Overdue:
    """The jobs that rank before all others, oldest first: they get at least `share` of the engine.

    A job becomes overdue when the last step had nothing of it (it waits, or is paused), it is not in time, and it is
    `patience_s` old. It stays overdue to its end, so that no job that made way for it takes its place again, unless it
    turns out to be in time. Jobs without a target are never in time.

    The engine owes overdue jobs `share` of what it does. A job's part of a step is the mean of its parts of the tokens
    and of the KV of that step. The next oldest job becomes overdue when nothing is owed back and all overdue jobs run.

    The bound: let a job that is not in time be left out, and let such jobs that are older need W engine seconds. It
    becomes overdue at the latest W / `share` later, and then runs first. Jobs that come later add nothing to that.
    First come, first served it would wait up to W: so no job waits more than 1 / `share` times as long. Costs:
    O(running) a step that leaves a job out, O(n log n) in one after jobs that came out of turn.
    """

    def __init__(self, patience_s: float, share: float = LEAST_SHARE) -> None:
        if not patience_s >= 0:
            raise ConfigError.of("patience_s", patience_s, "0 or more seconds")
        self.patience_s = patience_s
        self.share = share
        self._live: dict[Job, None] = {}
        self._by_age = True
        self._ran: set[Job] = set()
        self._overdue: Mapping[Job, None] = {}
        self._owed_s = 0.0
        self._seen_s = inf
        self._owed_more = 0.0

    def add(self, job: Job) -> None:
        """Take in a job. O(1)."""
        if self._live and _age(job) < _age(next(reversed(self._live))):
            self._by_age = False
        self._live[job] = None

    def end(self, job: Job) -> None:
        """Forget a job."""
        self._live.pop(job, None)
        self._ran.discard(job)
        if job in self._overdue:
            self._overdue = dict.fromkeys(one for one in self._overdue if one is not job)

    def of(self, now_s: float, on_time: InTime) -> list[Job]:
        """The overdue jobs, resident or not, the longest overdue first."""
        asked = [*self._overdue, *self._next(now_s)]
        if not asked:
            return asked
        in_time = set(on_time(asked, now_s))
        late = [job for job in asked if job not in in_time]
        held = [job for job in late if job in self._overdue]
        return late[: len(held) + 1]

    def _next(self, now_s: float) -> Sequence[Job]:
        """The jobs of which the first late one becomes overdue now, oldest first."""
        ran = self._ran
        if len(ran) == len(self._live) or self._owed_at(now_s) < 0:
            return ()
        if not all(job in ran for job in self._overdue):
            return ()
        if not self._by_age:  # once a step, however many came out of turn
            self._live, self._by_age = dict.fromkeys(sorted(self._live, key=_age)), True
        long_ago_s = now_s - self.patience_s
        old_enough = takewhile(
            lambda job: job.arrival_s <= long_ago_s, (job for job in self._live if job not in ran)
        )
        return list(islice(old_enough, _MOST_LOOKED_AT))

    def _owed_at(self, now_s: float) -> float:
        """Engine seconds that overdue jobs are owed; negative if they have had more than their share."""
        return min(0.0, self._owed_s + max(0.0, now_s - self._seen_s) * self._owed_more)

    def observe(self, outcome: StepOutcome, overdue: Sequence[Job]) -> None:
        """Note which jobs are overdue in this step, and how the step before changed what they are owed."""
        self._owed_s, self._seen_s = self._owed_at(outcome.now_s), outcome.now_s
        self._overdue = dict.fromkeys(overdue)
        self._ran = self._live.keys() & outcome.tokens.keys()
        self._owed_more = self.share - _part(
            outcome.tokens, [job for job in self._overdue if job in outcome.tokens]
        )


def _age(job: Job) -> tuple[float, str]:
    """Sorts jobs oldest first."""
    return job.arrival_s, job.id


def _part(tokens: Mapping[Job, int], jobs: Collection[Job]) -> float:
    """The part of a step spent on these jobs: the mean of their shares of its tokens and of its KV."""
    if not jobs:
        return 0.0
    of_tokens = sum(map(tokens.__getitem__, jobs)) / sum(tokens.values())
    kv_tokens = sum(job.num_computed_tokens for job in tokens)
    of_kv = sum(job.num_computed_tokens for job in jobs) / kv_tokens if kv_tokens else of_tokens
    return (of_tokens + of_kv) / 2
