"""Least slack first."""

from __future__ import annotations

from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job
from headway.policies.order.due import NO_TARGET_S, DueOrder


class LeastSlack(DueOrder):
    """The job that must start first to make its next target: deadline minus the predicted prefill.

    Slack is deadline - now - prefill; now is the same for all, so the key is the latest start time and
    does not drift. The prediction is the one at the time a job starts to wait. A prompt that has begun keeps its
    rank by that, or prompts of like slack would take turns and all be late; whether it is late goes by what is left
    of it. Source: Ascendra section 3.5, with EDF read as least slack (spec gap S1).
    """

    def __init__(self, cost: CostModel | None = None) -> None:
        super().__init__()
        self._cost: CostModel = cost or UnknownCost()

    def due_s(self, job: Job) -> float:
        """The latest start that makes the job's next target."""
        due = job.due_s
        if due is None:
            return NO_TARGET_S
        return due - self._cost.prefill_s(job.num_tokens - job.num_computed_tokens)
