"""Longest wait per token first."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.core.view import StepView
from headway.policies.order.wait_index import WaitIndex


class WaitedOverLength:
    """Highest (time since arrival) / (tokens so far) first: short jobs gain rank fast, no job starves.

    Costs and error are those of `WaitIndex`: of two jobs, one may be served before the other although its own
    value is lower, but never by more than one part in 64. Source: AdaptiveLLM section 1.2, which leaves open
    whether output tokens count: with `prompt_only` they do not, so a job does not lose rank as it grows.
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
        """Nothing is kept of a job that does not wait."""

    def touch(self, job: Job) -> None:
        """Move a waiting job whose length changed to its new queue."""
        if self.holds(job):
            self.remove(job)
            self.add(job)

    def holds(self, job: Job) -> bool:
        """Whether a job waits."""
        return self._waiting.holds(job)

    def top(self, k: int, now_s: float) -> list[Job]:
        """The first k waiting jobs, within the stated error."""
        return self._waiting.top(k, now_s)

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
