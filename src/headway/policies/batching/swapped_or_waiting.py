"""Brings swapped jobs back or starts waiting ones, whichever have waited more on average."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol, TypeGuard, runtime_checkable

from headway.core.job import Job
from headway.core.plan import StepPlan
from headway.core.view import StepView
from headway.policies.batching.admission import fitting
from headway.policies.batching.whole_prompts import (
    check_padding,
    prompts_of_step,
    ranked_queues,
    residents_next_blocks,
)
from headway.policies.order.response_ratio import WaitedOverLength
from headway.policies.protocols import Drifting, LearnsNothing, Order, offers


@runtime_checkable
class Valued(Protocol):
    """An order that says how much a job's claim is worth, for a batching that compares whole queues."""

    def value(self, job: Job, now_s: float) -> float:
        """A job's claim, not negative; of two jobs the one with more is served first."""


_BY_WAIT = WaitedOverLength()
"""Gives values to the queues if the order has none."""


@dataclass(slots=True)
class SwappedOrWaiting(Drifting, LearnsNothing):
    """A step prefills waiting jobs, or decodes with swapped jobs back, by the higher mean of waited / length.

    From either queue the leading jobs count that fit the blocks (with one more each to grow into), the batch width and,
    for whole prompts, the token budget. No job is admitted while the residents' own next tokens do not fit or no block
    is free. An empty list never wins (gap A3), and a tie goes to the swapped jobs (A2). A step that starts prompts runs
    no decodes; swapped jobs come back and decode with the residents in one step. If the order has no values, it ranks
    within the queues, which are then compared by waited / length. `skip_misfit` skips a job that does not fit;
    `max_padding_tokens` is as in `PrefillFirst`. A list whose first job is not ready counts as empty: at most two calls
    of `view.admissible` a step. In an empty engine with neither list ready, the engine decides which waiting job may
    start. O(residents + seats) a step, and the order's own ranking.

    No job waits for ever. (1) Each step that runs yields an output token, or is one of the ceil(length / max_tokens)
    chunks of a prompt that runs alone and yields one at its end; known tokens are never lost. So jobs with p prompt and
    o output tokens all end within the sum of o x ceil((p + o) / max_tokens) steps that run. (2) While the waiting queue
    keeps losing the comparison no new job comes in, so the started jobs end within that many steps; then the first in
    line starts. (3) A job of length L that has waited W and stands first in its queue loses only to a list with a job
    that has waited W / (L x batch width) or more, since its own list has at least that mean: newcomers alone never beat
    it. Source: AdaptiveLLM Algorithm 2 (section 1.4).
    """

    skip_misfit: bool = False
    max_padding_tokens: int | None = None

    def __post_init__(self) -> None:
        check_padding(self.max_padding_tokens)

    @property
    def pads_prompts(self) -> bool:
        """Whether the prompts of a step all count as long as the longest."""
        return self.max_padding_tokens is not None

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """Plan one decode of all, with or without swapped jobs back, or a prefill of waiting jobs."""
        prefills = [job for job in view.residents if job.prefilling and job not in view.restoring]
        swapped, waiting = ([], []) if prefills else self._lists(view, order, leaving)
        value = order.value if _values(order) else _BY_WAIT.value
        prefill = _mean(value, waiting, view.now_s) > _mean(value, swapped, view.now_s)
        return StepPlan(
            run=prefills or (() if prefill else order.rank(view.residents, view.now_s)),
            admit=waiting if prefill else swapped,
            token_budget=view.max_tokens,
            whole_prompts=True,
        )

    def _lists(
        self, view: StepView, order: Order, leaving: Collection[Job]
    ) -> tuple[Sequence[Job], Sequence[Job]]:
        """The jobs that could come back, and those that could start, as many as possible of each."""
        room = view.free_blocks - residents_next_blocks(view)
        if not view.seats or not view.free_blocks or room < 0:
            return (), ()
        # A job takes at least one block, so the number of free blocks bounds the jobs that can start.
        back, line = ranked_queues(view, order, leaving, min(view.seats, room))
        swapped = fitting(view, back, room, skip_misfit=self.skip_misfit)
        waiting = self._prompts(view, fitting(view, line, room, skip_misfit=self.skip_misfit))
        ready = _if_ready(view, swapped[: view.seats]), _if_ready(view, waiting[: view.seats])
        if view.residents or any(ready):
            return ready
        return (), self._prompts(view, list(filter(view.ready, line))) if self.pads_prompts else line

    def _prompts(self, view: StepView, queued: Sequence[Job]) -> list[Job]:
        return prompts_of_step(
            queued,
            view.max_tokens,
            max_padding_tokens=self.max_padding_tokens,
            skip_misfit=self.skip_misfit,
        )


def _values(order: Order) -> TypeGuard[Valued]:
    """Whether an order is `Valued`."""
    return offers(order, Valued)


def _if_ready(view: StepView, queued: list[Job]) -> list[Job]:
    """The list, or an empty one if its first job would be skipped."""
    return queued if queued and view.admissible(queued[0]) else []


def _mean(value: Callable[[Job, float], float], queued: Sequence[Job], now_s: float) -> float:
    """The mean value of these jobs, -inf if there are none."""
    return sum(value(job, now_s) for job in queued) / len(queued) if queued else -inf
