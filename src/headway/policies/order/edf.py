"""Earliest deadline first."""

from __future__ import annotations

from headway.core.job import Job
from headway.policies.order.due import NO_TARGET_S, DueOrder


class EarliestDeadline(DueOrder):
    """The job whose next target runs out first (Liu and Layland 1973; Ascendra section 3.5).

    With the same target for all this is arrival order; use `slack` to tell long prompts from short.
    """

    def due_s(self, job: Job) -> float:
        """The job's next deadline."""
        due = job.due_s
        return NO_TARGET_S if due is None else due
