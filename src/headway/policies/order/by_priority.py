"""Puts requests of a better priority first, with any order within one priority."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from headway.core.job import Job
from headway.policies.order.arrival import Arrival
from headway.policies.order.keyed import Priority

_priority = attrgetter("priority")

if TYPE_CHECKING:
    from headway.policies.order.skip_join_mlfq import SkipJoinMlfq as _AnyOrder
else:
    _AnyOrder = object


class ArrivalByPriority(Priority):
    """vLLM's queue under `--scheduling-policy priority`: by priority, then arrival; residents stay as they are.

    A resident never makes way for a newcomer of a better priority. Short of blocks, vLLM preempts the resident of the
    worst priority, and of these the newest.
    """

    def rank(self, jobs: Sequence[Job], now_s: float) -> Sequence[Job]:
        """Residents in order of admission."""
        return jobs


class PriorityFirst(_AnyOrder):
    """Mixed into another order: lowest `priority` value first, then the other order within one priority.

    The other order still sees all jobs together: what it learns, and which jobs it takes to be in time, does not depend
    on priorities. top costs O(waiting log waiting) while jobs of several priorities wait; rank costs one more sort.
    """

    by_priority = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._waiting_of: Counter[int] = Counter()

    def add(self, job: Job) -> None:
        """Index a job that starts to wait."""
        super().add(job)
        self._waiting_of[job.priority] += 1

    def remove(self, job: Job) -> None:
        """Forget a job that no longer waits."""
        super().remove(job)
        self._waiting_of[job.priority] -= 1
        if not self._waiting_of[job.priority]:
            del self._waiting_of[job.priority]

    def top(self, k: int, now_s: float) -> list[Job]:
        """The first k waiting jobs."""
        if len(self._waiting_of) <= 1:
            return super().top(k, now_s)
        waiting = super().top(self._waiting_of.total(), now_s)
        return sorted(waiting, key=_priority)[:k]

    def rank(self, jobs: Sequence[Job], now_s: float) -> Sequence[Job]:
        """Sort `jobs`, most deserving first; the other order's own sequence if all have one priority."""
        ranked = super().rank(jobs, now_s)
        return sorted(ranked, key=_priority) if len(set(map(_priority, jobs))) > 1 else ranked


class _ForeseeingPriorityFirst(PriorityFirst):
    """Priority first, over an order that forecasts when jobs will be served."""

    def next_service_s(self, jobs: Sequence[Job], now_s: float, width: int) -> list[float]:
        """The other order's forecast, with no job before one of a better priority."""
        expected_s = dict(zip(jobs, super().next_service_s(jobs, now_s, width), strict=True))
        latest_s = 0.0
        for job in sorted(jobs, key=lambda job: (job.priority, expected_s[job])):
            latest_s = expected_s[job] = max(latest_s, expected_s[job])
        return [expected_s[job] for job in jobs]


@cache
def by_priority(order: type[Any]) -> type[Any]:
    """The class of an order that puts priority first. Arrival order becomes vLLM's own priority queue."""
    if order is Arrival:
        return ArrivalByPriority
    mixin = _ForeseeingPriorityFirst if hasattr(order, "next_service_s") else PriorityFirst
    return type(f"{order.__name__}ByPriority", (mixin, order), {})
