"""The instance with the least left to do."""

from __future__ import annotations

from collections.abc import Sequence

from headway.core.job import Job
from headway.routing.outstanding import OutstandingWork
from headway.routing.stays_put import StaysPut


class LeastWork(StaysPut):
    """The instance with the fewest outstanding tokens; the first named of several. O(instances)."""

    def __init__(self) -> None:
        self._work = OutstandingWork()

    def route(self, job: Job, instances: Sequence[str]) -> str:
        """The least loaded instance."""
        chosen = min(instances, key=self._work.tokens)
        self._work.place(job, chosen)
        return chosen

    def end(self, job: Job) -> None:
        """Its tokens are no longer outstanding."""
        self._work.end(job)
