"""Who has only just become resident."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.policies.eviction.counts import check_count


class Residency:
    """The jobs admitted in the last `min_residency` steps, so that none is evicted before it has run.

    Without it the job that came back last is often the next victim, since newcomers rank low (AdaptiveLLM gap
    A4). It is a preference, kept for so many steps and no longer: where only such jobs are left, they are
    victims like others. observe O(1), recent O(admitted in those steps).
    """

    def __init__(self, min_residency: int) -> None:
        check_count("min_residency", min_residency)
        self._admitted: deque[list[Job]] = deque(maxlen=min_residency)

    def recent(self) -> Collection[Job]:
        """Whom to spare."""
        return {job for jobs in self._admitted for job in jobs}

    def observe(self, outcome: StepOutcome) -> None:
        """One step more."""
        self._admitted.append(outcome.admitted)
