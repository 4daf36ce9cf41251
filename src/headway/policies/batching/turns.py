"""Whose step it is, where decodes and prompts take turns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from headway.core.plan import StepPlan
from headway.core.view import StepView
from headway.policies.batching.decode_first import split_decodes
from headway.policies.batching.rounds import Round

_DEARER = 1.1
"""Times as long as two steps that one has to take for decodes and prompts to take turns."""
_ALIKE = 1.02
"""From so many times on it is tried whether two are less."""


class Turn(Enum):
    """Whose step it is."""

    DECODES = "decodes"
    PROMPTS = "prompts"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class _Way:
    """Whether a step of both is dear, since how many rounds that has not changed, and whether answers pause now."""

    is_dear: bool = False
    num_rounds: int = 0
    answers_pause: bool = False


class Turns:
    """Decodes and prompts in one step, or in turn where that is less: prompts first, and then the decodes once.

    Which way is less is predicted by what both took before, so the other is tried too: in the 1st, 2nd, 4th, 8th
    round and so on since the lesser one has changed. Nobody saves up for that: where there is no time for it, decodes
    have the step. O(1) a step.
    """

    def __init__(self) -> None:
        self._seen = self._planned = _Way()

    def begin(self) -> None:
        """Plan a step: so far it is one of decodes alone."""
        self._planned = replace(self._seen, answers_pause=False) if self._seen.answers_pause else self._seen

    def apart(self, times_as_long: float) -> bool:
        """Whether decodes and prompts take turns, where a step of both takes so many times as long."""
        is_dear = times_as_long > _DEARER
        num_rounds = self._seen.num_rounds + 1 if is_dear == self._seen.is_dear else 1
        self._planned = _Way(is_dear, num_rounds)
        is_trial = num_rounds & (num_rounds - 1) == 0 and times_as_long > _ALIKE
        return self._seen.answers_pause or is_dear != is_trial

    def whose(self, planned: Round, tokens: int) -> Turn:
        """Whose step of a round with so many prompt tokens comes now."""
        if not planned.decodes.num_jobs:
            return Turn.BOTH
        if self._seen.answers_pause or not tokens:
            if self._seen.answers_pause or planned.rounds.apart == self._planned.is_dear:
                self.begin()  # no round; a trial that there is no time for was one
            return Turn.DECODES
        if not planned.rounds.apart:
            return Turn.BOTH
        self._planned = replace(self._planned, answers_pause=True)
        return Turn.PROMPTS

    def observe(self) -> None:
        """The planned step is done."""
        self._seen = self._planned


def step_of(view: StepView, plan: StepPlan, planned: Round, tokens: int, turn: Turn) -> StepPlan:
    """The plan, now of those whose turn it is in a round with so many prompt tokens. O(running)."""
    decodes, begun = split_decodes(plan.run)
    budget = tokens + planned.decodes.num_tokens
    if turn is Turn.DECODES:
        if tokens:  # else decodes save up for them, and nobody knows for how long
            plan.next_up = plan.admit[: view.seats_beside(plan.run)]
        plan.run, plan.admit = decodes, ()
        budget = planned.decodes.num_tokens
    elif turn is Turn.PROMPTS:
        plan.admit = plan.admit[: view.seats_beside(plan.run)]
        plan.run, budget = begun, tokens
    plan.token_budget = min(plan.token_budget, budget)
    return plan
