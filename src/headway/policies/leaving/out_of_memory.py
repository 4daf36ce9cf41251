"""Jobs that the memory could not hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from headway.core.job import Job, JobState
from headway.core.plan import Departure
from headway.core.view import StepView


@dataclass(slots=True)
class OutOfMemory:
    """A job that lost its KV for want of memory is handed back to who sent it, instead of waiting again.

    So a static batch that has outgrown the memory ends with an error, as it does where nothing can be
    preempted, and a central queue can split it (Magnus section on out-of-memory). O(leaving).
    """

    _preempted: dict[Job, Departure] = field(default_factory=dict)

    def add(self, job: Job) -> None:
        """Note a job that waits because it was preempted; one whose KV is on the host has lost nothing."""
        if job.num_preemptions and job.state is not JobState.SWAPPED:
            self._preempted[job] = Departure.HAND_OFF

    def remove(self, job: Job) -> None:
        """It no longer waits."""
        self._preempted.pop(job, None)

    def leave(self, view: StepView) -> Mapping[Job, Departure]:
        """All that were preempted."""
        return dict(self._preempted)

    def next_change_s(self, view: StepView) -> float:
        """Never by itself: a preemption makes a new plan, which lets them go."""
        return inf
