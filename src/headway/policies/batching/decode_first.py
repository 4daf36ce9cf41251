"""Runs decodes first, and prompts in chunks with the remaining tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from headway.core.job import Job
from headway.core.plan import StepPlan
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.batching.admission import candidates, fitting_or_ready
from headway.policies.batching.step_shapes import decodes_first
from headway.policies.demand import new_blocks
from headway.policies.protocols import LearnsNothing, Order, Unchanging


@dataclass(slots=True)
class DecodeFirst(Unchanging, LearnsNothing):
    """Runs every resident, decodes first; waiting jobs start in rank order with the remaining tokens.

    Stock vLLM V1 serves residents in order of admission. A resident in prefill is then always the last, since it took
    the rest of its step's budget. If the order keeps that sequence, nothing moves; after a re-ranking, prefills are
    moved behind the decodes. `token_budget` sets a smaller budget than the engine's own (Sarathi-Serve, Agrawal et al.
    2024, arXiv:2403.02310). With `head_room`, a job starts or comes back from the host only if all of its tokens and
    that many extra blocks fit beside all known tokens of the residents, so that it is not evicted in the next step.
    O(residents) a step, plus the order's own ranking.
    """

    token_budget: int | None = None
    head_room: int = 0

    def __post_init__(self) -> None:
        if self.head_room < 0:
            raise ConfigError.of("head_room", self.head_room, "0 or more blocks")
        if self.token_budget is not None and self.token_budget < 1:
            raise ConfigError.of("token_budget", self.token_budget, "1 or more tokens a step")

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """Plan all residents, then the best waiting jobs."""
        ranked = order.rank(view.residents, view.now_s)
        return StepPlan(
            run=ranked if ranked is view.residents else decodes_first(ranked),
            admit=self._admit(view, order, leaving),
            token_budget=view.max_tokens
            if self.token_budget is None
            else min(self.token_budget, view.max_tokens),
        )

    def _admit(self, view: StepView, order: Order, leaving: Collection[Job]) -> Sequence[Job]:
        first = candidates(view, order, leaving)
        if not self.head_room or not first:
            return first
        room = view.free_blocks - residents_known_blocks(view)
        return fitting_or_ready(view, first, room, head_room=self.head_room)


def residents_known_blocks(view: StepView) -> int:
    """Blocks the residents would take to compute all tokens known of them. O(residents)."""
    known_tokens = sum(job.num_tokens for job in view.residents)
    return sum(new_blocks(view, view.residents, known_tokens).values())
