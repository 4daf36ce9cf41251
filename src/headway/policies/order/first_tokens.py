"""Due times of first tokens for jobs without a target."""

from __future__ import annotations

from collections.abc import Iterable

from headway.core.job import Job
from headway.core.kept_programs import began_s
from headway.policies.order.predicted_remaining import DEFAULT_TAIL, give_way
from headway.policies.order.remaining_work import RemainingWork

_TIMES = 2.0
"""A first token is due after this many times the wait if prompts came first: three times stock's p99 with steps
under way.
"""


def most_times(tail: float) -> float:
    """For how many times as long as prompts alone would take a first token may wait: 800 at `tail` 0, 2 from 0.5 on."""
    return _TIMES * max(1.0, give_way(tail) / give_way(DEFAULT_TAIL)) ** 2


class FirstTokens:
    """Due times of first tokens, from the wait if the engine computed prompts alone, one after another.

    A job is due when it has waited `times` as long as that. So its first token does not wait for a stream of shorter
    jobs, and if prompts themselves are the queue, short ones still come first. A job has no due time while step times
    are unknown, if it has a target, which says what is due, and if it is a later turn of an agent program, for which
    only the end counts. O(1) a job. Source: the virtual clock of fair queueing (Zhang, SIGCOMM 1990), of one flow.
    """

    def __init__(self, work: RemainingWork, times: float) -> None:
        self._work = work
        self._times = times
        self._free_s = 0.0
        self._due_s: dict[Job, float] = {}

    def add(self, job: Job) -> None:
        """A job waits; one that has waited before keeps its due time."""
        if job in self._due_s or job.num_output_tokens:
            return
        prompt_s = self._work.prompt_s(job)
        self._free_s = max(self._free_s, job.arrival_s) + prompt_s
        if prompt_s and not job.slo and began_s(job) == job.arrival_s:
            self._due_s[job] = job.arrival_s + self._times * (self._free_s - job.arrival_s)

    def end(self, job: Job) -> None:
        """Forget a job."""
        self._due_s.pop(job, None)

    def overdue(self, jobs: Iterable[Job], now_s: float) -> list[Job]:
        """The jobs whose first token is due, earliest first. O(jobs)."""
        due_s = self._due_s
        found = [
            (due, job.arrival_s, job.id, job)
            for job in jobs
            if not job.num_output_tokens and (due := due_s.get(job)) is not None and due <= now_s
        ]
        return [job for *_, job in sorted(found)]
