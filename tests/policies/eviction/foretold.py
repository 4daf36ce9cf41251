"""An order that says what it is told: when each job is served next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headway.core.job import Job, JobState
from headway.policies.order.keyed import KeyedOrder
from headway.policies.order.sorted_index import Key


class Foretold(KeyedOrder):
    """Ranks by the seconds told for each id, then by id; `at_first` jobs are at the first levels."""

    def __init__(self, soon_s: Mapping[Job, float], at_first: int = 0) -> None:
        super().__init__()
        self.soon_s = soon_s
        self.at_first = at_first
        for job in soon_s:
            self.add(job)
            if job.state is JobState.RESIDENT:
                self.remove(job)

    def key(self, job: Job) -> Key:
        """(seconds, id)."""
        return (self.soon_s[job], job.id)

    def next_service_s(self, jobs: Sequence[Job], now_s: float, width: int) -> list[float]:
        """The times that the test has set."""
        return [self.soon_s[job] for job in jobs]

    def num_at_first(self, levels: int) -> int:
        """The number that the test has set."""
        return self.at_first if levels else 0
