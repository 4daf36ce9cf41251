"""Prompts first and whole; as many residents as memory will hold to the end of their answers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import ceil, inf

from headway.core.job import Job
from headway.core.plan import StepOutcome, StepPlan
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.batching.answer_lengths import WINDOW, AnswerLengths
from headway.policies.batching.candidates import candidates
from headway.policies.batching.prefill_first import prefills_or_decodes
from headway.policies.order import Order

FREE_SHARE = 0.10
"""Of all blocks must be free for a newcomer to start (Ascendra, section on the HP instances)."""


class Elastic:
    """A step prefills whole prompts or decodes; a newcomer starts while memory lasts for all that are resident.

    Room for a newcomer's tokens, for the answer expected of it, and for what each resident's is expected to bring
    yet: answers are expected to be as long as the last `window` that finished were, by their `statistic` (mean, p50
    or p90), and never longer than their limit. Before the first has finished none is expected. More than a tenth of
    all blocks must be free. The first that has no room ends it: strictly in rank order. In an empty engine the first
    may take all there is. `elastic=false` starts newcomers up to `width` residents instead, whatever memory there is.
    An answer longer than expected may cost others their KV. O(residents) a step while somebody waits.
    Source: Ascendra (Ikram et al. 2025, arXiv:2504.20828), HP instances; spec 3.7.
    """

    def __init__(
        self, *, elastic: bool = True, width: int = 128, statistic: str = "mean", window: int = WINDOW
    ) -> None:
        if width < 1:
            raise ConfigError(f"width is {width}; accepted: 1 or more residents")
        self.elastic = elastic
        self.width = width
        self._answers = AnswerLengths(statistic, window)

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """A prefill step if the first waiting job may start, else one decode of every resident."""
        return prefills_or_decodes(view, order, leaving, self._newcomers)

    def _newcomers(self, view: StepView, order: Order, leaving: Collection[Job]) -> Sequence[Job]:
        seats = view.seats if self.elastic else self.width - len(view.residents)
        first = candidates(view, order, leaving, seats=seats)
        if first and not view.residents and not view.admissible(first[0]):
            # Nobody is kept out of an empty engine by one that is not ready.
            first = [job for job in first if view.admissible(job)]
        return self._with_room(view, first) if self.elastic else first[: max(0, seats)]

    def _with_room(self, view: StepView, queued: Sequence[Job]) -> list[Job]:
        """The leading jobs that memory will hold to the end, beside the residents."""
        if not queued:
            return []
        free = view.free_blocks
        room = free - sum(self._to_come_blocks(view, job) for job in view.residents)
        found: list[Job] = []
        for job in queued:
            needed, to_come = view.blocks(job.num_tokens), self._to_come_blocks(view, job)
            alone = not found and not view.residents
            if not alone and (needed + to_come > room or free <= FREE_SHARE * view.total_blocks):
                break
            found.append(job)
            free -= needed
            room -= needed + to_come
        return found

    def _to_come_blocks(self, view: StepView, job: Job) -> int:
        """Blocks for what a job is expected to bring yet."""
        tokens = min(self._answers.expected_tokens, job.max_output_tokens) - job.num_output_tokens
        return view.blocks(ceil(tokens)) if tokens > 0 else 0

    def next_change_s(self, view: StepView) -> float:
        """Not known while somebody waits who could have a seat: what is expected of residents falls as they decode."""
        waits = bool(view.waiting or view.swapped)
        return -inf if waits and view.seats > 0 and self.elastic else inf

    def finished(self, job: Job) -> None:
        """An answer's length is known."""
        self._answers.add(job.num_output_tokens)

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn from steps: the lengths of answers are learned when they end."""
