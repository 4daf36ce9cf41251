"""Clairvoyant bounds: what could be had if every answer's length were known."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import nsmallest
from math import inf

from headway.core.cost import CostModel
from headway.core.job import Job
from headway.core.plan import Fate, StepOutcome, StepPlan
from headway.core.view import StepView
from headway.policies.batching.top_jobs import TopJobs
from headway.policies.order import Order
from headway.policies.policy import Policy

Key = tuple[float | str, ...]
Lengths = Mapping[str, int]
"""True output tokens by request id."""


class ClairvoyantOrder:
    """Ascending `key(job, now_s)`, computed anew each time: it depends on how much is still to come.

    It exists in the simulator alone: no part that a preset or a flag can name knows a true length. Keys
    must end in (arrival_s, id). top O(waiting log k), rank O(n log n).
    """

    def __init__(self, key: Callable[[Job, float], Key]) -> None:
        self._key = key
        self._waiting: dict[Job, None] = {}

    def add(self, job: Job) -> None:
        """A job starts to wait."""
        self._waiting[job] = None

    def remove(self, job: Job) -> None:
        """A job no longer waits."""
        del self._waiting[job]

    def end(self, job: Job) -> None:
        """Nothing is kept."""

    def touch(self, job: Job) -> None:
        """Nothing is stored that could be out of date."""

    def top(self, k: int, now_s: float) -> list[Job]:
        """The first k waiting jobs."""
        return nsmallest(k, self._waiting, key=lambda job: self._key(job, now_s))

    def rank(self, jobs: Sequence[Job], now_s: float) -> Sequence[Job]:
        """`jobs` in key order."""
        return sorted(jobs, key=lambda job: self._key(job, now_s))

    def next_change_s(self, view: StepView) -> float:
        """Not known: keys fall as answers grow."""
        return -inf

    def observe(self, outcome: StepOutcome) -> None:
        """There is nothing left to learn."""


def shortest_remaining(output_tokens: Lengths, cost: CostModel) -> ClairvoyantOrder:
    """The job with the fewest output tokens to come, then the shorter prompt: SRPT (Schrage 1968).

    Tokens stand for time: a step brings each running job one.
    """

    def key(job: Job, now_s: float) -> Key:
        to_come = output_tokens[job.id] - job.num_output_tokens
        return (to_come, job.num_tokens - job.num_computed_tokens, job.arrival_s, job.id)

    return ClairvoyantOrder(key)


def earliest_makeable(output_tokens: Lengths, cost: CostModel) -> ClairvoyantOrder:
    """Earliest deadline first among the jobs that can still make theirs, then those without, then the lost.

    What a job still needs, served alone, is its prefill and, for a whole-answer deadline, a step for each
    token. Source: EDF (Liu and Layland 1973) with a test of feasibility.
    """

    def key(job: Job, now_s: float) -> Key:
        due_s = job.due_s
        if due_s is None:
            return (1, inf, job.arrival_s, job.id)
        work_s = cost.prefill_s(max(1, job.num_tokens - job.num_computed_tokens))
        if job.slo.deadline_s is not None and due_s == job.arrival_s + job.slo.deadline_s:
            work_s += cost.prefill_s(1) * (output_tokens[job.id] - job.num_output_tokens - 1)
        return (2 if now_s + work_s > due_s else 0, due_s, job.arrival_s, job.id)

    return ClairvoyantOrder(key)


class Displacing:
    """The top jobs run, and one that lacks a slot or blocks displaces residents that rank below it.

    The lowest ranked go first, as few as make room, and nobody if all of them would not do; they compute
    their KV again later. It is batching and eviction in one, as a bound may be. O(residents log residents).
    """

    def __init__(self) -> None:
        self._top = TopJobs()

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """The top jobs, or first of all the newcomer that displaces somebody."""
        plan = self._top.plan(view, order, leaving)
        newcomer = next((job for job in order.top(1, view.now_s) if job not in leaving), None)
        if newcomer is None or view.admissible(newcomer):
            return plan
        ranked = order.rank([*view.residents, newcomer], view.now_s)
        victims = self._victims(view, newcomer, ranked[ranked.index(newcomer) + 1 :])
        if victims:
            plan.preempt = dict.fromkeys(victims, Fate.RECOMPUTE)
            plan.run = [job for job in ranked if job is not newcomer and job not in plan.preempt]
            plan.run = plan.run[: view.max_run - 1]
            plan.admit = [newcomer]
        return plan

    def _victims(self, view: StepView, newcomer: Job, below: Sequence[Job]) -> list[Job]:
        """The fewest of the lowest ranked that make room; empty if room cannot be made or is there."""
        slots = view.max_resident - len(view.residents)
        blocks = view.free_blocks - view.blocks(newcomer.num_tokens)
        victims: list[Job] = []
        for job in reversed(below):
            if slots > 0 and blocks >= 0:
                break
            victims.append(job)
            slots += 1
            blocks += view.blocks(job.num_computed_tokens)
        return victims if slots > 0 and blocks >= 0 else []

    def preempt(self, view: StepView, plan: StepPlan, order: Order) -> Mapping[Job, Fate]:
        """Whom the plan displaces."""
        return plan.preempt

    def next_change_s(self, view: StepView) -> float:
        """As long as the order stands."""
        return inf

    def observe(self, outcome: StepOutcome) -> None:
        """There is nothing left to learn."""


def _bound(
    name: str, order: Callable[[Lengths, CostModel], ClairvoyantOrder]
) -> Callable[[Lengths], Callable[[CostModel], Policy]]:
    def with_lengths(output_tokens: Lengths) -> Callable[[CostModel], Policy]:
        def build(cost: CostModel) -> Policy:
            displacing = Displacing()
            return Policy(name, order(output_tokens, cost), displacing, displacing)

        return build

    return with_lengths


ORACLES = {
    "srpt-oracle": _bound("srpt-oracle", shortest_remaining),
    "edf-oracle": _bound("edf-oracle", earliest_makeable),
}
"""By name: from the true lengths to a maker of policies."""
