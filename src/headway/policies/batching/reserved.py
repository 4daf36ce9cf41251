"""Batches that reserve memory for the longest possible output."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from headway.core.job import Job, JobState
from headway.core.plan import StepOutcome, StepPlan
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.batching.admission import candidates
from headway.policies.protocols import LearnsNothing, Order, Unchanging


def reservable(view: StepView, wanted: Iterable[Job], *, least_tokens: int = 0) -> list[Job]:
    """The leading jobs of `wanted` whose prompt and whole output limit fit beside those of the residents.

    Every job reserves `least_tokens` or more. If every resident was admitted by this rule, no KV is ever evicted. A job
    whose limit exceeds the whole pool reserves all of it and runs alone, since its answer may be shorter. O(residents +
    wanted).
    """
    free = view.total_blocks - sum(_reserved_blocks(view, job, least_tokens) for job in view.residents)
    fitting: list[Job] = []
    for job in wanted:
        free -= _reserved_blocks(view, job, least_tokens)
        if free < 0:
            break
        fitting.append(job)
    return fitting


def _reserved_blocks(view: StepView, job: Job, least_tokens: int) -> int:
    tokens = max(least_tokens, job.num_prompt_tokens + job.max_output_tokens)
    return min(view.blocks(tokens), view.total_blocks)


@dataclass(slots=True)
class RequestLevel(Unchanging):
    """Take up to `batch_size` jobs in rank order, and run exactly these until all have ended.

    Members whose prompts did not fit the first step start in the following ones; a preempted member re-enters as a
    member. With `reserve` the batch is cut to what fits with every output at its limit, so no job is preempted. Source:
    FasterTransformer, as FastServe section 4.7 describes it; Magnus section 2.1.
    """

    batch_size: int | None = None
    reserve: bool = True
    _members: list[Job] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.batch_size is not None and self.batch_size < 1:
            raise ConfigError.of("batch_size", self.batch_size, "1 or more jobs")

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """Plan the current batch, or a new one if it is over."""
        members = self._live() or self._next_batch(view, order, leaving)
        return StepPlan(
            run=order.rank(view.residents, view.now_s),
            admit=[job for job in members if job.state is not JobState.RESIDENT and job not in leaving],
            token_budget=view.max_tokens,
        )

    def _live(self) -> list[Job]:
        return [job for job in self._members if job.state is not JobState.ENDED]

    def _next_batch(self, view: StepView, order: Order, leaving: Collection[Job]) -> list[Job]:
        size = view.seats if self.batch_size is None else min(self.batch_size, view.seats)
        first = candidates(view, order, leaving, seats=size)[:size]
        return reservable(view, first) if self.reserve else first

    def observe(self, outcome: StepOutcome) -> None:
        """Make the batch that just started the current one."""
        if outcome.admitted and not self._live():
            self._members = list(outcome.plan.admit)


@dataclass(slots=True)
class IterationLevel(Unchanging, LearnsNothing):
    """Jobs join and leave at every step; prefill and decode share it; prompts are whole; no job is evicted.

    A job is admitted only if blocks for its prompt and its output limit can be reserved, so it runs to completion.
    Every job reserves `reserve_tokens` or more: with the model's context length, each reservation is the largest
    possible, as in Orca. A prompt longer than a step's budget runs alone, in chunks; the batch waits for it. Source:
    Orca (Yu et al., OSDI 2022), as FastServe section 4.7 describes it; Orca (Max) of the vLLM paper (Kwon et al., SOSP
    2023) reserves the context.
    """

    reserve_tokens: int = 0

    def __post_init__(self) -> None:
        if self.reserve_tokens < 0:
            raise ConfigError.of("reserve_tokens", self.reserve_tokens, "0 or more tokens")

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """Plan every resident, then the waiting jobs for which memory can be reserved."""
        admit = reservable(view, candidates(view, order, leaving), least_tokens=self.reserve_tokens)
        prefills = [job for job in view.residents if job.prefilling]
        too_long = bool(admit) and not prefills and admit[0].num_tokens > view.max_tokens
        alone = too_long and view.admissible(admit[0])
        return StepPlan(
            run=() if alone else prefills or order.rank(view.residents, view.now_s),
            admit=() if prefills else admit[:1] if alone else admit,
            token_budget=view.max_tokens,
            whole_prompts=True,
        )
