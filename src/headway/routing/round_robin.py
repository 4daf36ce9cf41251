"""Each instance in turn."""

from __future__ import annotations

from collections.abc import Sequence

from headway.core.job import Job
from headway.routing.stays_put import StaysPut


class RoundRobin(StaysPut):
    """The next instance of the list, whatever it is doing. O(1)."""

    def __init__(self) -> None:
        self._turn = 0

    def route(self, job: Job, instances: Sequence[str]) -> str:
        """The next in turn."""
        chosen = instances[self._turn % len(instances)]
        self._turn += 1
        return chosen

    def end(self, job: Job) -> None:
        """Nothing is kept."""
