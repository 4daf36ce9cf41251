"""Estimates what the prefix cache and a KV store hold of waiting prompts, updating a few at a time."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable

from headway.core.job import Job, JobState
from headway.core.plan import StepOutcome

LOOKS = 16
"""Waiting jobs that are updated after a step with prompts."""


Finds = Callable[[Job, int], bool]
"""Whether a block of a waiting job's tokens, by its index, is found."""


class PrefixWatch:
    """Sets `num_cached_tokens` of waiting jobs: once on arrival, then in turn after steps with prompts.

    Only prompts add or displace many findable blocks; so with n jobs waiting a number is at most n / LOOKS such steps
    old. `finds(job, i)` says whether the i-th block of a waiting job's tokens is cached, and `changed` is called for
    each job whose number has changed. A cache frees the last blocks of a sequence first, so a block that is there
    implies all before it: an update without a change costs two questions, any other O(log blocks). Since some earlier
    block may be gone nevertheless, the number is an estimate.

    With `stored`, which says whether a block is in the prefix cache or in a connector's store, it sets
    `num_stored_tokens` in the same way.
    """

    def __init__(
        self,
        finds: Finds,
        block_size: int,
        changed: Callable[[Job], None],
        *,
        stored: Finds | None = None,
    ) -> None:
        self._finds = finds
        self._stored = stored
        self._block_size = block_size
        self._changed = changed
        self._line: OrderedDict[Job, None] = OrderedDict()

    def come(self, job: Job) -> None:
        """A job starts to wait, before it is ranked."""
        job.num_cached_tokens, job.num_stored_tokens = self._looked_up(job)
        self._line[job] = None

    def follow(self, outcome: StepOutcome) -> None:
        """A step was filled and the ledger follows it; preempted jobs are not ranked yet."""
        for job in outcome.admitted:
            job.num_cached_tokens = 0
            if self._stored is not None:
                job.num_stored_tokens = 0
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
        """Update the next few waiting jobs. O(LOOKS)."""
        line = self._line
        for _ in range(min(LOOKS, len(line))):
            job, _ = line.popitem(last=False)
            line[job] = None
            found = self._looked_up(job)
            if found != (job.num_cached_tokens, job.num_stored_tokens):
                job.num_cached_tokens, job.num_stored_tokens = found
                self._changed(job)

    def _looked_up(self, job: Job) -> tuple[int, int]:
        """Cached tokens, and stored ones; without `stored` the latter are unchanged."""
        cached, stored = self._found_tokens(job, job.num_cached_tokens, self._finds), job.num_stored_tokens
        return cached, stored if self._stored is None else self._found_tokens(job, stored, self._stored)

    def _found_tokens(self, job: Job, last_found: int, finds: Finds) -> int:
        """Leading tokens found, in whole blocks: at most all but one, which has to be computed anyway."""
        most = (job.num_tokens - 1) // self._block_size
        known = min(most, last_found // self._block_size)
        as_known = (not known or finds(job, known - 1)) and (known == most or not finds(job, known))
        if not as_known:
            known = bisect_left(range(most), True, key=lambda index: not finds(job, index))
        return known * self._block_size
