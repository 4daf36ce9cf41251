"""Orders by due time, after which being first no longer helps."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from math import inf

from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job
from headway.core.view import StepView
from headway.policies.order.keyed import KeyedOrder
from headway.policies.order.sorted_index import Key, SortedIndex


class DueOrder(KeyedOrder):
    """Earliest `due_s` first, then jobs without a target, then those already too late.

    A target that can no longer be met is never "most urgent" (invariant 10): a late job waits behind every job that can
    still be in time. Among late jobs the earliest due comes first. If no job has a target this is arrival order. top is
    O(log n + k).
    """

    needs_targets = True
    _index: SortedIndex

    @abstractmethod
    def due_s(self, job: Job) -> float:
        """When the job becomes too late; inf without a target."""

    def key(self, job: Job) -> Key:
        """(due, arrival, id)."""
        return (self.due_s(job), job.arrival_s, job.id)

    def top(self, k: int, now_s: float) -> list[Job]:
        """The first k waiting jobs: those on time first, late ones last."""
        late = self._index.position((now_s,))
        on_time = self._index.slice(late, late + k)
        return on_time + self._index.slice(0, min(late, k - len(on_time)))

    def rank(self, jobs: Sequence[Job], now_s: float) -> Sequence[Job]:
        """Sort `jobs` by the same rule; a job that began in time stays in time while its rest can be."""
        key = self._keys.__getitem__
        ranked = sorted(jobs, key=key)
        late = bisect_left(ranked, (now_s,), key=key)
        if not late:
            return ranked
        in_time = [job for job in ranked[:late] if self.due_s(job) >= now_s]
        too_late = [job for job in ranked[:late] if self.due_s(job) < now_s]
        return [*in_time, *ranked[late:], *too_late]

    def next_change_s(self, view: StepView) -> float:
        """When the next job becomes late."""
        on_time = self._index.position((view.now_s,))
        waiting = self._index.slice(on_time, on_time + 1)
        due = [float(self._keys[job][0]) for job in waiting]
        # A job that began in time keeps its place until its rest is late too.
        due += [max(float(self._keys[job][0]), self.due_s(job)) for job in view.residents]
        return min((due_s for due_s in due if due_s >= view.now_s), default=inf)


class EarliestDeadline(DueOrder):
    """The job whose next target expires first (Liu and Layland 1973; Ascendra section 3.5).

    If all jobs have the same target this is arrival order; `slack` distinguishes long prompts from short ones.
    """

    def due_s(self, job: Job) -> float:
        """The job's next deadline."""
        return inf if job.due_s is None else job.due_s


class LeastSlack(DueOrder):
    """The job that must start first to make its next target: deadline minus the predicted prefill.

    Slack is deadline - now - prefill. Now is the same for all jobs, so the key is the latest start time and does not
    drift. The prefill is predicted when a job starts to wait. A prompt in progress keeps that rank, or prompts of
    similar slack would take turns and all be late; whether it is late depends on its remaining work. Source: Ascendra
    section 3.5, with EDF read as least slack (spec gap S1).
    """

    def __init__(self, cost: CostModel | None = None) -> None:
        super().__init__()
        self._cost: CostModel = cost or UnknownCost()

    def due_s(self, job: Job) -> float:
        """The latest start that makes the job's next target."""
        if job.due_s is None:
            return inf
        return job.due_s - self._cost.prefill_s(job.num_tokens - job.num_computed_tokens)
