"""How much of the prompts that wait the prefix cache holds, kept up to date a few at a time."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable

from headway.core.job import Job, JobState
from headway.core.plan import StepOutcome

LOOKS = 16
"""Waiting jobs that are looked at after a step with prompts."""


class PrefixWatch:
    """Sets `num_cached_tokens` of the jobs that wait: once when they come, and then in turn after steps with prompts.

    Only prompts bring, and displace, much that others could find; so with n jobs waiting a number is at most
    n / LOOKS such steps old. `finds(job, i)` says whether the i-th block of a waiting job's tokens is cached, and
    `changed` hears of each job whose number is another than before. A cache frees the last blocks of a sequence first,
    so a block that is there stands for all before it: a look that changes nothing costs two questions, any other O(log
    blocks). That some block before it may be gone all the same is what makes the number an estimate.
    """

    def __init__(
        self, finds: Callable[[Job, int], bool], block_size: int, changed: Callable[[Job], None]
    ) -> None:
        self._finds = finds
        self._block_size = block_size
        self._changed = changed
        self._line: OrderedDict[Job, None] = OrderedDict()

    def come(self, job: Job) -> None:
        """A job starts to wait; nobody has ranked it yet."""
        job.num_cached_tokens = self._found_tokens(job)
        self._line[job] = None

    def follow(self, outcome: StepOutcome) -> None:
        """A step was filled and the ledger follows it; who was preempted is not ranked yet."""
        for job in outcome.admitted:
            job.num_cached_tokens = 0
            self._line.pop(job, None)
        for job in outcome.preempted:
            if job.state is JobState.WAITING:
                self.come(job)
        if outcome.num_tokens > len(outcome.tokens):
            self._look_again()

    def end(self, job: Job) -> None:
        """A job is gone; nothing to do if it did not wait."""
        self._line.pop(job, None)

    def _look_again(self) -> None:
        """Look at the next few that wait. O(LOOKS)."""
        line = self._line
        for _ in range(min(LOOKS, len(line))):
            job, _ = line.popitem(last=False)
            line[job] = None
            found = self._found_tokens(job)
            if found != job.num_cached_tokens:
                job.num_cached_tokens = found
                self._changed(job)

    def _found_tokens(self, job: Job) -> int:
        """Leading tokens found, in whole blocks: at most all but one, which has to be computed anyway."""
        finds, most = self._finds, (job.num_tokens - 1) // self._block_size
        known = min(most, job.num_cached_tokens // self._block_size)
        as_known = (not known or finds(job, known - 1)) and (known == most or not finds(job, known))
        if not as_known:
            known = bisect_left(range(most), True, key=lambda index: not finds(job, index))
        return known * self._block_size
