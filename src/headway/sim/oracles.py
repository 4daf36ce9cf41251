"""Clairvoyant references: what a scheduler could do if it knew every answer's length."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from headway.core.cost import CostModel
from headway.core.job import Job
from headway.core.plan import Fate, StepOutcome, StepPlan
from headway.core.view import StepView
from headway.policies.batching.top_jobs import TopJobs
from headway.policies.policy import Policy
from headway.policies.protocols import Order

DECODES_A_STEP = 8
"""Answers that share a step in the estimate of a token's cost; with 16 the demo stream's mean time is 2 % less."""


@dataclass(frozen=True, slots=True)
class Knowledge:
    """The true output tokens by request id, which no policy has. Exists only in the simulator."""

    output_tokens: Mapping[str, int]
    cost: CostModel

    def work_s(self, job: Job) -> float:
        """Engine time that a job still needs: its prefill, and a share of a step for each token to come.

        Until the cost model has seen a few steps, tokens to come stand for time.
        """
        step_s = self.cost.prefill_s(1)
        to_come = self.output_tokens[job.id] - job.num_output_tokens
        if not step_s:
            return to_come
        uncomputed = job.num_tokens - job.num_computed_tokens
        prefill_s = self.cost.prefill_s(uncomputed) - step_s if uncomputed > 1 else 0.0
        return prefill_s + to_come * step_s / DECODES_A_STEP

    def lost_work_s(self, job: Job) -> float:
        """Engine time lost by dropping a resident's KV."""
        return self.cost.prefill_s(max(1, job.num_computed_tokens))


Rank = Callable[[Knowledge, Sequence[Job], float], list[Job]]
"""Sorts jobs at an instant, most deserving first; ties end in (arrival, id)."""
Worth = Callable[[Knowledge, Job, Job, float], bool]
"""Whether a newcomer is worth a resident's KV at an instant."""


def shortest_work(known: Knowledge, jobs: Sequence[Job], now_s: float) -> list[Job]:
    """Least remaining work first: SRPT (Schrage 1968), which minimises the mean time on a single server."""
    return sorted(jobs, key=lambda job: (known.work_s(job), job.arrival_s, job.id))


def saves_work(known: Knowledge, newcomer: Job, resident: Job, now_s: float) -> bool:
    """Whether the newcomer's work and the resident's loss together are less than the resident's remaining work."""
    return known.work_s(newcomer) + known.lost_work_s(resident) < known.work_s(resident)


def most_on_time(known: Knowledge, jobs: Sequence[Job], now_s: float) -> list[Job]:
    """The largest set of jobs that can all be on time, earliest due first; then the others by work.

    Goes by due time; whenever a job would be late, the longest so far is given up: this gives the fewest late jobs on a
    single server. Source: Moore 1968.
    """
    on_time: list[tuple[float, Job]] = []
    given_up: list[Job] = []
    total_s = 0.0
    with_target = [job for job in jobs if job.due_s is not None]
    for job in sorted(with_target, key=lambda job: (job.due_s, job.arrival_s, job.id)):
        work_s = known.work_s(job)
        on_time.append((work_s, job))
        total_s += work_s
        if now_s + total_s > (job.due_s or inf):
            longest = max(on_time, key=lambda entry: (entry[0], entry[1].arrival_s, entry[1].id))
            on_time.remove(longest)
            total_s -= longest[0]
            given_up.append(longest[1])
    rest = [*given_up, *(job for job in jobs if job.due_s is None)]
    return [job for _, job in on_time] + shortest_work(known, rest, now_s)


def saves_a_target(known: Knowledge, newcomer: Job, resident: Job, now_s: float) -> bool:
    """Whether the newcomer can still be on time and the resident has no target left to miss."""
    due_s = newcomer.due_s
    makeable = due_s is not None and now_s + known.work_s(newcomer) <= due_s
    return makeable and not resident.slo


class ClairvoyantOrder:
    """Ranks from scratch each time, since the best order depends on the remaining work. O(n log n) or O(n^2)."""

    def __init__(self, known: Knowledge, rank: Rank) -> None:
        self._known = known
        self._rank = rank
        self._waiting: dict[Job, None] = {}

    def add(self, job: Job) -> None:
        """A job starts to wait."""
        self._waiting[job] = None

    def remove(self, job: Job) -> None:
        """A job no longer waits."""
        del self._waiting[job]

    def end(self, job: Job) -> None:
        """Nothing: no state is kept."""

    def touch(self, job: Job) -> None:
        """Nothing: no stored state can be out of date."""

    def top(self, k: int, now_s: float) -> list[Job]:
        """The first k waiting jobs."""
        return self._rank(self._known, list(self._waiting), now_s)[:k]

    def rank(self, jobs: Sequence[Job], now_s: float) -> Sequence[Job]:
        """Sort `jobs` by the rule."""
        return self._rank(self._known, jobs, now_s)

    def next_change_s(self, view: StepView) -> float:
        """Unknown: work falls as answers grow."""
        return -inf

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing: there is nothing left to learn."""


class Displacing:
    """Runs the top jobs; one that lacks a slot or blocks displaces residents that are worth less.

    The lowest-ranked are displaced first, as few as possible, and none if all of them would not make enough room; they
    compute their KV again later. Acts as batching and eviction in one. O(residents log residents).
    """

    serial = False

    def __init__(self, known: Knowledge, worth: Worth) -> None:
        self._known = known
        self._worth = worth
        self._top = TopJobs()

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """Plan the top jobs, or only make room for the newcomer that displaces residents."""
        plan = self._top.plan(view, order, leaving)
        newcomer = next((job for job in order.top(1, view.now_s) if job not in leaving), None)
        if newcomer is None or view.admissible(newcomer):
            return plan
        ranked = order.rank([*view.residents, newcomer], view.now_s)
        below = ranked[ranked.index(newcomer) + 1 :]
        worth_less = [job for job in below if self._worth(self._known, newcomer, job, view.now_s)]
        victims = self._victims(view, newcomer, worth_less)
        if victims:
            plan.preempt = dict.fromkeys(victims, Fate.RECOMPUTE)
            staying = [job for job in ranked if job is not newcomer and job not in plan.preempt]
            plan.run = staying[: view.max_run - 1]
            plan.admit = [newcomer]
        return plan

    def _victims(self, view: StepView, newcomer: Job, below: Sequence[Job]) -> list[Job]:
        """The fewest lowest-ranked jobs that make room; empty if room cannot be made or exists already."""
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

    def evict(self, view: StepView, plan: StepPlan, order: Order) -> StepPlan:
        """The plan as it is, since it contains the displaced jobs already."""
        return plan

    def next_change_s(self, view: StepView) -> float:
        """As long as the order stays as it is."""
        return inf

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing: there is nothing left to learn."""


def _oracle(name: str, rank: Rank, worth: Worth, output_tokens: Mapping[str, int], cost: CostModel) -> Policy:
    known = Knowledge(output_tokens, cost)
    displacing = Displacing(known, worth)
    return Policy(name, ClairvoyantOrder(known, rank), displacing, displacing)


ORACLES: Mapping[str, Callable[[Mapping[str, int]], Callable[[CostModel], Policy]]] = {
    "srpt-oracle": partial(partial, _oracle, "srpt-oracle", shortest_work, saves_work),
    "edf-oracle": partial(partial, _oracle, "edf-oracle", most_on_time, saves_a_target),
}
"""Name -> a function from the true lengths to a maker of policies."""
