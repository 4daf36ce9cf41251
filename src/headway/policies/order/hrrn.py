"""Highest response ratio next, a request at a time."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf

from headway.core.cost import CostModel
from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.core.view import StepView
from headway.policies.order.remaining_work import RemainingWork
from headway.policies.order.wait_index import WaitIndex

SIZES_A_SECOND = 1_000_000
"""Work is indexed in whole microseconds."""


class Hrrn:
    """Highest (waited + work) / work first, with the work a job still needs by its prediction.

    That is 1 + waited / work, so the ranking is by waited / work, and costs and error are those of `WaitIndex`; work is
    estimated as `RemainingWork` says. A short job gains rank fast, and every job gains it without bound as it
    waits, so none starves: one of work w that has waited W is passed only by jobs that have waited W / w times
    their own work. Magnus ranks whole batches by it (section 2.7); here it is one request.
    """

    trusts_predictions = True

    def __init__(self, cost: CostModel | None = None) -> None:
        self._work = RemainingWork(cost)
        self._waiting = WaitIndex()

    def add(self, job: Job) -> None:
        """Queue a job among those of its work."""
        self._waiting.add(job, max(1, ceil(self._work.estimate(job) * SIZES_A_SECOND)))

    def remove(self, job: Job) -> None:
        """Take a job that no longer waits out of the queues; its work still ranks it as a resident."""
        self._waiting.remove(job)

    def end(self, job: Job) -> None:
        """Forget a job."""
        self._work.forget(job)

    def finished(self, job: Job) -> None:
        """Learn how long answers are that nobody predicts."""
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
        """`jobs` by their ratio; ties by (arrival, id)."""
        work_s = self._work.of
        entries = [((job.arrival_s - now_s) / work_s(job), job.arrival_s, job.id, job) for job in jobs]
        entries.sort()
        return [entry[3] for entry in entries]

    def value(self, job: Job, now_s: float) -> float:
        """Seconds waited for each second of work: 0 on arrival, higher first."""
        return (now_s - job.arrival_s) / self._work.of(job)

    def next_change_s(self, view: StepView) -> float:
        """Not known: rankings cross as time passes and work falls."""
        return -inf

    def observe(self, outcome: StepOutcome) -> None:
        """Estimate the work anew of those that have brought enough tokens since, and of some that are in doubt."""
        self._work.observe(outcome)
        for job in [*self._work.outdated(outcome.tokens), *self._work.next_in_doubt()]:
            self.touch(job)
