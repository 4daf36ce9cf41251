"""Runs new prompts first and whole; decodes only if there is none to start."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

from headway.core.job import Job
from headway.core.plan import StepPlan
from headway.core.view import StepView
from headway.policies.batching.admission import candidates, fitting, fitting_or_ready
from headway.policies.batching.whole_prompts import (
    check_padding,
    prompts_of_step,
    ranked_queues,
    residents_next_blocks,
)
from headway.policies.demand import within_host
from headway.policies.protocols import LearnsNothing, Order, Unchanging

Newcomers = Callable[[StepView, Order, Collection[Job]], Sequence[Job]]
"""The waiting jobs that may start, the most deserving first, without those leaving."""


@dataclass(slots=True)
class PrefillFirst(Unchanging, LearnsNothing):
    """A step either prefills or decodes, never both; prompts are computed whole (vLLM's first scheduler).

    While the first waiting job can start, decodes pause and their KV stays. In an empty engine jobs that are not
    ready are passed over. A prompt longer than a step's budget runs alone, in chunks. While any job is swapped
    none that waits is admitted: swapped jobs that fit, with a block each to grow into, come back and decode in the
    same step.

    With `max_padding_tokens` prompts are padded to the longest of their step, as vLLM 0.2.1 to 0.3.3 does: see
    `whole_prompts.prompts_of_step`. With `host_room` a job starts or comes back only while the blocks of all
    residents, its own and one more fit the host's together, so that any job that has to leave finds room there
    (AdaptiveLLM section 1.7); in an empty engine a waiting job starts whatever the host has.
    """

    swapped_first: ClassVar[bool] = True
    """Whether swapped jobs come back before any waiting job starts."""
    host_room: bool = False
    max_padding_tokens: int | None = None

    def __post_init__(self) -> None:
        check_padding(self.max_padding_tokens)

    @property
    def pads_prompts(self) -> bool:
        """Whether the prompts of a step all count as long as the longest."""
        return self.max_padding_tokens is not None

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """A prefill step if the first waiting job passes every check, else one decode of every resident."""
        bounded = within_host(view) if self.host_room else view
        return prefills_or_decodes(bounded, order, leaving, self._candidates)

    def _candidates(self, view: StepView, order: Order, leaving: Collection[Job]) -> Sequence[Job]:
        found: Sequence[Job] = candidates(view, order, leaving)
        if self.host_room:
            room = fitting_or_ready(view, found, view.free_blocks, head_room=1)
            found = room if room or view.residents else found[:1]
        if not self.pads_prompts:
            return found
        if not view.residents:
            found = [job for job in found if view.ready(job)]
        return prompts_of_step(found, view.max_tokens, max_padding_tokens=self.max_padding_tokens)


def prefills_or_decodes(
    view: StepView, order: Order, leaving: Collection[Job], newcomers: Newcomers
) -> StepPlan:
    """A step of the prompts in progress, else of those that `newcomers` returns, else of every decode."""
    prefills = [job for job in view.residents if job.prefilling and job not in view.restoring]
    if view.defers_prompts:
        prefills = []
    if any(job not in leaving for job in view.swapped):
        back: list[Job] = []
        if not prefills:
            swapped, _ = ranked_queues(view, order, leaving, seats=0)
            back = fitting(view, swapped, view.free_blocks - residents_next_blocks(view))
        return _whole(view, prefills or order.rank(view.residents, view.now_s), back)
    admit = [] if prefills else newcomers(view, order, leaving)
    starts = bool(admit) and (not view.residents or view.admissible(admit[0]))
    run = prefills if prefills or starts else order.rank(view.residents, view.now_s)
    return _whole(view, run, admit if starts else ())


def _whole(view: StepView, run: Sequence[Job], admit: Sequence[Job]) -> StepPlan:
    return StepPlan(run=run, admit=admit, token_budget=view.max_tokens, whole_prompts=True)
