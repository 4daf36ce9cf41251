"""A clairvoyant reference for `regret`: as many jobs on time as a single server could have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from math import exp, inf

from headway.core.cost import CostModel
from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.core.view import StepView
from headway.policies.batching.within_budgets import WithinBudgets
from headway.policies.eviction.reactive import Recompute
from headway.policies.leaving.queue_limits import Expired
from headway.policies.order.sorted_index import Key, SortedIndex
from headway.policies.policy import Policy

MOST_PLANNED = 256
"""At most this many of the jobs that can be on time, the most urgent ones, are planned together in a step."""
TOKEN_BUDGET = 2048
MOST_RESIDENT = 1024
OUTPUT_WEIGHT = 4.0
"""Prompt tokens that cost as much as one token of an answer, which shares its step with many others and holds
memory meanwhile: 4 on an H100 with Llama-3.1-8B at 250 answers a step, 11 on an A100 with OPT-13B at 25.
"""
MEMORY_S = 5.0
"""Time constant of the prefill rate's running mean."""


class OnTimeOracle:
    """Jobs that will be on time first, by latest start; then those given up, late or without targets, least work first.

    A job can be on time until its first token's deadline less its own prefill. Once it has produced tokens and lost its
    KV, it can be on time until its remaining tokens would fall behind their target. Among the most urgent MOST_PLANNED
    jobs, whenever one would be late at the recent prefill rate, the costliest job before it is given up (Moore 1968:
    fewest late jobs on a single server). Costs are weighed with the true lengths.

    This is neither optimal nor a bound: an engine that batches is no single server. O(MOST_PLANNED log) a step.
    """

    def __init__(self, output_tokens: Mapping[str, int], cost: CostModel) -> None:
        self._output_tokens = output_tokens
        self._cost = cost
        self._hopeful, self._others = SortedIndex(), SortedIndex()
        self._waiting: dict[Job, tuple[SortedIndex, Key]] = {}
        self._latest_s: dict[Job, float] = {}
        self._given_up: set[Job] = set()
        self._rate = PrefillRate()

    def add(self, job: Job) -> None:
        """A job starts to wait."""
        latest_s = self._latest_s[job] = self.latest_start_s(job)
        if latest_s < inf:
            self._file(job, self._hopeful, (latest_s, job.arrival_s, job.id))
        else:
            self._file(job, self._others, self._least_work(job))

    def remove(self, job: Job) -> None:
        """A job no longer waits."""
        index, key = self._waiting.pop(job)
        index.remove(job, key)

    def end(self, job: Job) -> None:
        """A job has ended."""
        del self._latest_s[job]

    def touch(self, job: Job) -> None:
        """A job's first token is out, so that another target counts."""
        if job in self._waiting:
            self.remove(job)
            self.add(job)
        else:
            self._latest_s[job] = self.latest_start_s(job)

    def latest_start_s(self, job: Job) -> float:
        """The last instant to begin the job; inf without a target that could still be missed."""
        prefill_s = self._cost.prefill_s(max(1, job.num_tokens - job.num_computed_tokens))
        if not job.num_output_tokens:
            deadline_s = job.ttft_deadline_s
            return inf if deadline_s is None else deadline_s - prefill_s
        if job.slo.tbt_s is None or job.first_token_s is None:
            return inf
        to_come = self._output_tokens[job.id] - job.num_output_tokens
        finish_s = job.first_token_s + job.slo.tbt_s * (self._output_tokens[job.id] - 1)
        return finish_s - prefill_s - to_come * self._cost.prefill_s(1)

    def work_tokens(self, job: Job) -> float:
        """The job's remaining cost in prompt tokens."""
        to_come = self._output_tokens[job.id] - job.num_output_tokens
        return job.num_tokens - job.num_computed_tokens + OUTPUT_WEIGHT * to_come

    def top(self, k: int, now_s: float) -> list[Job]:
        """The first k waiting jobs."""
        while len(self._hopeful) and (job := self._hopeful.at(0)) and self._latest_s[job] < now_s:
            self.remove(job)
            self._file(job, self._others, self._least_work(job))
        urgent = self._hopeful.slice(0, MOST_PLANNED)
        on_time, given_up = self._planned(urgent, now_s)
        self._given_up = set(given_up)
        found = on_time + self._hopeful.slice(MOST_PLANNED, MOST_PLANNED + k)
        return [*found, *given_up, *self._others.slice(0, k)][:k]

    def rank(self, jobs: Sequence[Job], now_s: float) -> Sequence[Job]:
        """`jobs` by the same rule."""
        return sorted(jobs, key=lambda job: self._place(job, now_s))

    def next_change_s(self, view: StepView) -> float:
        """Unknown while a job waits: whether it can be on time depends on how fast others are served."""
        return -inf if self._waiting else inf

    def observe(self, outcome: StepOutcome) -> None:
        """Update the prefill rate."""
        self._rate.observe(outcome, busy=len(self._hopeful) > 0)

    def _file(self, job: Job, index: SortedIndex, key: Key) -> None:
        index.insert(job, key)
        self._waiting[job] = (index, key)

    def _least_work(self, job: Job) -> Key:
        return (self.work_tokens(job), job.arrival_s, job.id)

    def _place(self, job: Job, now_s: float) -> Key:
        latest_s = self._latest_s[job]
        if job not in self._given_up and now_s <= latest_s < inf:
            return (0, latest_s, job.arrival_s, job.id)
        return (1, self.work_tokens(job), job.arrival_s, job.id)

    def _planned(self, urgent: Sequence[Job], now_s: float) -> tuple[list[Job], list[Job]]:
        """The jobs that will be on time one after another, and those given up for that, cheapest first."""
        tokens_a_s = self._rate.tokens_a_s
        if not tokens_a_s:
            return list(urgent), []
        costliest: list[tuple[float, float, str, Job]] = []
        given_up: set[Job] = set()
        ahead = 0
        for job in urgent:
            heappush(costliest, (-self.work_tokens(job), -job.arrival_s, job.id, job))
            ahead += job.num_tokens
            while job not in given_up and now_s + (ahead - job.num_tokens) / tokens_a_s > self._latest_s[job]:
                dropped = heappop(costliest)[3]
                ahead -= dropped.num_tokens
                given_up.add(dropped)
        cheapest_first = sorted(given_up, key=self._least_work)
        return [job for job in urgent if job not in given_up], cheapest_first


class PrefillRate:
    """Prompt tokens computed a second while prompts waited, as a running mean; 0 while unknown."""

    def __init__(self) -> None:
        self.tokens_a_s = 0.0
        self._last_s = -inf
        self._tokens = 0

    def observe(self, outcome: StepOutcome, *, busy: bool) -> None:
        """A step was scheduled: count the time since the one before as that step's duration. O(jobs)."""
        elapsed_s = outcome.now_s - self._last_s
        if self._tokens and 0 < elapsed_s < inf:
            rate = self._tokens / elapsed_s
            weight = 1 - exp(-elapsed_s / MEMORY_S) if self.tokens_a_s else 1.0
            self.tokens_a_s += weight * (rate - self.tokens_a_s)
        self._last_s = outcome.now_s
        self._tokens = sum(tokens for tokens in outcome.tokens.values() if tokens > 1) if busy else 0


def on_time_policy(name: str, output_tokens: Mapping[str, int], cost: CostModel) -> Policy:
    """A policy with this order, whose steps last as long as the tightest target between tokens allows; late jobs are
    dropped.

    For the simulator alone.
    """
    batching = WithinBudgets(cost, token_budget=TOKEN_BUDGET, width=MOST_RESIDENT)
    return Policy(name, OnTimeOracle(output_tokens, cost), batching, Recompute(), (Expired(),))
