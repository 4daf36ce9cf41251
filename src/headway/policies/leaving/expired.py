"""Waiting jobs whose deadline has passed."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from headway.core.job import Job
from headway.core.plan import Departure
from headway.core.view import StepView
from headway.policies.order.sorted_index import Key, SortedIndex


class Expired:
    """A waiting job leaves once a target of it is certainly missed: its time to first token or its deadline.

    Dropped before any more work is spent on it (Ascendra section 3.9). A job without targets never
    leaves. O(log n + leaving).
    """

    def __init__(self) -> None:
        self._by_due = SortedIndex()
        self._keys: dict[Job, Key] = {}

    def add(self, job: Job) -> None:
        """Watch a job that has a target."""
        if job.due_s is not None:
            self._keys[job] = (job.due_s, job.arrival_s, job.id)
            self._by_due.insert(job, self._keys[job])

    def remove(self, job: Job) -> None:
        """Stop watching."""
        key = self._keys.pop(job, None)
        if key is not None:
            self._by_due.remove(job, key)

    def leave(self, view: StepView) -> Mapping[Job, Departure]:
        """All that are past due."""
        return dict.fromkeys(self._by_due.slice(0, self._by_due.position((view.now_s,))), Departure.EXPIRED)

    def next_change_s(self, view: StepView) -> float:
        """When the first of the watched is due."""
        first = self._by_due.slice(0, 1)
        return self._keys[first[0]][0] if first else inf
