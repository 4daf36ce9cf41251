"""The better of two."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from headway.core.job import Job
from headway.routing.outstanding import OutstandingWork
from headway.routing.stays_put import StaysPut


class PowerOfTwo(StaysPut):
    """Of two instances picked by the job's id, the one with less outstanding work. O(1).

    Nearly as even as looking at all, and without the herd that all routers of a fleet send to the same
    least loaded instance. The id decides instead of chance, so that a run can be repeated. Source:
    Mitzenmacher 2001, "The power of two choices in randomized load balancing".
    """

    def __init__(self) -> None:
        self._work = OutstandingWork()

    def route(self, job: Job, instances: Sequence[str]) -> str:
        """The less loaded of the job's two instances; the first of two equals."""
        count, digest = len(instances), crc32(job.id.encode())
        first = digest % count
        # The second is another one: a step of 1 to count - 1 further on.
        second = (first + 1 + digest // count % (count - 1)) % count if count > 1 else first
        chosen = min(instances[first], instances[second], key=self._work.tokens)
        self._work.place(job, chosen)
        return chosen

    def end(self, job: Job) -> None:
        """Its tokens are no longer outstanding."""
        self._work.end(job)
