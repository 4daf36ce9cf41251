"""Limits on the queue: jobs past due, out of memory, or beyond a bound leave it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, nextafter

from headway.core.job import Job, JobState
from headway.core.plan import Departure
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.order.sorted_index import KeyedIndex
from headway.policies.protocols import Unchanging


@dataclass(slots=True)
class QueueBound:
    """Sheds the newest waiting jobs beyond a count or a sum of prompt tokens, and those that wait too long.

    Only jobs that have not started are counted or shed: one that lost its KV half-way keeps its place. The oldest job
    is never shed for its tokens alone, so an empty queue serves a long prompt. O(1) while within bounds, else O(shed).
    """

    max_waiting: int | None = None
    max_waiting_tokens: int | None = None
    max_age_s: float | None = None
    _by_arrival: KeyedIndex = field(default_factory=KeyedIndex)
    _waiting_tokens: int = 0

    def __post_init__(self) -> None:
        bounds = {name: getattr(self, name) for name in ("max_waiting", "max_waiting_tokens", "max_age_s")}
        if all(bound is None for bound in bounds.values()):
            raise ConfigError("queue-bound needs at least one of max_waiting, max_waiting_tokens, max_age_s")
        for name, bound in bounds.items():
            if bound is not None and not bound > 0:
                raise ConfigError(f"queue-bound: {name} is {bound}; accepted: more than 0")

    def add(self, job: Job) -> None:
        """Count a job that has not started."""
        if job.first_scheduled_s is None:
            self._by_arrival.put(job, (job.arrival_s, job.id))
            self._waiting_tokens += job.num_prompt_tokens

    def remove(self, job: Job) -> None:
        """Stop counting a job."""
        if self._by_arrival.discard(job):
            self._waiting_tokens -= job.num_prompt_tokens

    def leave(self, view: StepView) -> Mapping[Job, Departure]:
        """The jobs that are too old, then the newest until the rest is within bounds."""
        count, tokens = len(self._by_arrival), self._waiting_tokens
        leaving: dict[Job, Departure] = {}
        if self.max_age_s is not None:
            stale = self._by_arrival.position((view.now_s - self.max_age_s,))
            for job in self._by_arrival.slice(0, stale):
                leaving[job] = Departure.SHED
                count, tokens = count - 1, tokens - job.num_prompt_tokens
        at = len(self._by_arrival) - 1
        while count > 0 and self._exceeded(count, tokens):
            job = self._by_arrival.at(at)
            leaving[job] = Departure.SHED
            count, tokens, at = count - 1, tokens - job.num_prompt_tokens, at - 1
        return leaving

    def next_change_s(self, view: StepView) -> float:
        """When the oldest job becomes too old; counts change by arrivals alone."""
        if self.max_age_s is None or not len(self._by_arrival):
            return inf
        # The age test is arrival < now - age, which rounds differently from now > arrival + age.
        return nextafter(self._by_arrival.at(0).arrival_s + self.max_age_s, -inf)

    def _exceeded(self, count: int, tokens: int) -> bool:
        too_many = self.max_waiting is not None and count > self.max_waiting
        too_long = self.max_waiting_tokens is not None and tokens > self.max_waiting_tokens and count > 1
        return too_many or too_long


class Expired:
    """A waiting job leaves once it has certainly missed a target: its time to first token or its deadline.

    No more work is spent on it (Ascendra section 3.9). A job without targets never leaves. O(log n + leaving).
    """

    def __init__(self) -> None:
        self._by_due = KeyedIndex()

    def add(self, job: Job) -> None:
        """Watch a job that has a target."""
        if job.due_s is not None:
            self._by_due.put(job, (job.due_s, job.arrival_s, job.id))

    def remove(self, job: Job) -> None:
        """Stop watching a job."""
        self._by_due.discard(job)

    def leave(self, view: StepView) -> Mapping[Job, Departure]:
        """All jobs that are past due."""
        return dict.fromkeys(self._by_due.slice(0, self._by_due.position((view.now_s,))), Departure.EXPIRED)

    def next_change_s(self, view: StepView) -> float:
        """When the first of the watched jobs is due."""
        first = self._by_due.slice(0, 1)
        return self._by_due.keys[first[0]][0] if first else inf


@dataclass(slots=True)
class OutOfMemory(Unchanging):
    """Hands back a job that lost its KV for want of memory, if its sender accepts that; it does not wait again.

    A central queue can then split a batch that has outgrown the memory (Magnus section on out-of-memory). O(leaving).
    """

    _preempted: dict[Job, Departure] = field(default_factory=dict)

    def add(self, job: Job) -> None:
        """Note a job that waits because it was preempted; one whose KV is on the host has lost nothing."""
        if job.may_move and job.num_preemptions and job.state is not JobState.SWAPPED:
            self._preempted[job] = Departure.HAND_OFF

    def remove(self, job: Job) -> None:
        """Forget a job that no longer waits."""
        self._preempted.pop(job, None)

    def leave(self, view: StepView) -> Mapping[Job, Departure]:
        """All preempted jobs."""
        return dict(self._preempted)
