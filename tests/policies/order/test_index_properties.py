"""Every order's `top` against a plain sort, after any sequence of adds, admissions, preemptions and ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.cost import UnknownCost
from headway.core.job import Job
from headway.policies.order.arrival import Arrival
from headway.policies.order.due import EarliestDeadline, LeastSlack
from headway.policies.order.keyed import LongestPrompt, Priority, ShortestPrompt
from headway.policies.protocols import Order
from tests.strategies import UNTIMED, ids, instants, waiting_jobs

SortKey = Callable[[Job, float], tuple[Any, ...]]


class ThousandTokensASecond(UnknownCost):
    """A cost model that makes long prompts a few seconds more urgent."""

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds for a prompt."""
        return num_tokens / 1000


def _due_key(late_start_s: float | None, job: Job, now_s: float) -> tuple[Any, ...]:
    """On time by due, then without a target, then late by due; ties to (arrival, id)."""
    group = 1 if late_start_s is None else 2 if late_start_s < now_s else 0
    return (group, late_start_s or 0.0, job.arrival_s, job.id)


def _slack_key(job: Job, now_s: float) -> tuple[Any, ...]:
    to_compute = job.num_tokens - job.num_computed_tokens
    return _due_key(None if job.due_s is None else job.due_s - to_compute / 1000, job, now_s)


ORDERS: list[tuple[Callable[[], Order], SortKey]] = [
    (ShortestPrompt, lambda job, now_s: (job.num_prompt_tokens, job.arrival_s, job.id)),
    (LongestPrompt, lambda job, now_s: (-job.num_prompt_tokens, job.arrival_s, job.id)),
    (Priority, lambda job, now_s: (job.priority, job.arrival_s, job.id)),
    (EarliestDeadline, lambda job, now_s: _due_key(job.due_s, job, now_s)),
    (lambda: LeastSlack(ThousandTokensASecond()), _slack_key),
]
every_order = pytest.mark.parametrize(("make", "key"), ORDERS, ids=["short", "long", "prio", "edf", "slack"])

moves = st.lists(
    st.tuples(st.sampled_from(["admit", "preempt", "token", "end"]), st.integers(0, 99)), max_size=25
)
"""What happens next, and to which of the jobs it may happen to."""


class Desk:
    """Jobs going through an order, as a policy would lead them."""

    def __init__(self, order: Order, jobs: list[Job]) -> None:
        self.order = order
        self.waiting = list(jobs)
        self.running: list[Job] = []
        for job in jobs:
            order.add(job)

    def move(self, kind: str, pick: int) -> None:
        """One event, if there is a job for it."""
        source = {"admit": self.waiting, "preempt": self.running}.get(kind, self.waiting + self.running)
        if not source:
            return
        job = source[pick % len(source)]
        getattr(self, f"_{kind}")(job)

    def _admit(self, job: Job) -> None:
        self.order.remove(job)
        self.waiting.remove(job)
        self.running.append(job)
        job.num_computed_tokens = job.num_tokens

    def _preempt(self, job: Job) -> None:
        job.num_computed_tokens = 0
        job.num_preemptions += 1
        self.running.remove(job)
        self.waiting.append(job)
        self.order.add(job)

    def _token(self, job: Job) -> None:
        job.num_output_tokens += 1
        self.order.touch(job)

    def _end(self, job: Job) -> None:
        if job in self.waiting:
            self.order.remove(job)
            self.waiting.remove(job)
        else:
            self.running.remove(job)
        self.order.end(job)


@every_order
@UNTIMED
@given(jobs=waiting_jobs(), moves=moves, now_s=instants)
def test_top_is_the_sorted_queue(
    make: Callable[[], Order], key: SortKey, jobs: list[Job], moves: list[tuple[str, int]], now_s: float
) -> None:
    desk = Desk(make(), jobs)
    for kind, pick in moves:
        desk.move(kind, pick)
        expected = ids(sorted(desk.waiting, key=lambda job: key(job, now_s)))
        for k in (0, 1, 3, len(expected), 99):
            assert ids(desk.order.top(k, now_s)) == expected[:k]


@UNTIMED
@given(jobs=waiting_jobs(), moves=moves)
def test_the_arrival_queue_is_a_list_with_two_ends(jobs: list[Job], moves: list[tuple[str, int]]) -> None:
    desk, expected = Desk(Arrival(), jobs), ids(jobs)
    for kind, pick in moves:
        before = list(desk.waiting)
        desk.move(kind, pick)
        gone = [job.id for job in before if job not in desk.waiting]
        back = [job.id for job in desk.waiting if job not in before]
        expected = back + [name for name in expected if name not in gone]
        assert ids(desk.order.top(99, 0.0)) == expected
