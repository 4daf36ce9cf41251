"""Rounds of decodes and prompts: what they take, whose step comes next, and what time streams have saved."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from math import inf

from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel
from headway.core.job import Job
from headway.core.plan import StepPlan
from headway.core.view import StepView
from headway.policies.batching.decode_first import split_decodes
from headway.policies.batching.step_shapes import (
    GRAIN_TOKENS,
    left_tokens,
    shape_of_prompts,
    together,
    with_prompt,
)


def last_short(most: int, too_long: Callable[[int], bool]) -> int:
    """The largest number up to `most` that is not too long, 0 if none; the more, the longer. O(log most) asked."""
    if most <= 0 or not too_long(most):
        return max(0, most)
    return max(0, bisect_left(range(most), True, key=too_long) - 1)


@dataclass(frozen=True, slots=True)
class Rounds:
    """Rounds in one step, or `apart`: in two, one of decodes and one of prompts.

    One step reads the weights once. But where decodes share the kernel of prompts (FlashAttention 2) they may take
    more than twice as long with them as alone: then two steps are less.
    """

    cost: CostModel
    apart: bool = False
    graphed_tokens: int = 0
    """Of a step that CUDA graphs hold, at most."""

    def seconds(self, decodes: BatchShape, prompts: BatchShape) -> float:
        """What a round of these takes; 0 while that is not known."""
        if not self.apart:
            return self.cost.step_s(together(decodes, prompts))
        return self.cost.step_s(decodes) + self.cost.step_s(prompts)

    def prompts_in_graphs(self, decodes: BatchShape) -> int:
        """Prompt tokens that CUDA graphs hold in the step that they have, beside these decodes or without."""
        return self.graphed_tokens if self.apart else self.graphed_tokens - decodes.num_tokens


def times_as_long(cost: CostModel, decodes: BatchShape, prompts: Sequence[Job]) -> float:
    """How many times as long one step takes as two, with the least of prompts; 0 if not known, or without either."""
    few = shape_of_prompts(prompts, GRAIN_TOKENS)
    if not decodes.num_jobs or not few.num_jobs:
        return 0.0
    one_s, two_s = (Rounds(cost, apart).seconds(decodes, few) for apart in (False, True))
    return one_s / two_s if two_s else 0.0


@dataclass(frozen=True)
class Round:
    """One of them: these decodes, and tokens of these prompts, one after another."""

    rounds: Rounds
    decodes: BatchShape
    prompts: Sequence[Job]

    @cached_property
    def decodes_s(self) -> float:
        """Seconds of the decodes alone."""
        return self.rounds.cost.step_s(self.decodes)

    def prompts_s(self, tokens: int) -> float:
        """Seconds of so many prompt tokens alone."""
        return self.rounds.cost.step_s(shape_of_prompts(self.prompts, tokens))

    def seconds(self, tokens: int) -> float:
        """Seconds with so many prompt tokens."""
        return self._seconds(shape_of_prompts(self.prompts, tokens))

    def _seconds(self, part: BatchShape) -> float:
        """`Rounds.seconds`, with the decodes predicted once."""
        if self.rounds.apart:
            return self.decodes_s + self.rounds.cost.step_s(part)
        return self.rounds.seconds(self.decodes, part)

    def most_tokens(self, longest_s: float, at_most: int) -> int:
        """Prompt tokens with which it lasts no longer, to the grain; `at_most` where all of them do.

        The fewest, however long they take. O(prompts), and a prediction for each and O(log tokens) for the last.
        """
        part, granted = BatchShape(), 0
        for job in self.prompts:
            if granted >= at_most:
                break
            tokens = min(left_tokens(job), at_most - granted)
            if not tokens:
                continue
            longer = with_prompt(part, tokens, job.num_found_tokens)
            if self._seconds(longer) > longest_s:
                return max(GRAIN_TOKENS, granted, self._cut(part, job, granted, tokens, longest_s))
            part, granted = longer, granted + tokens
        return at_most

    def soonest(self, tokens: int) -> int:
        """So many prompt tokens, or those that CUDA graphs hold, if the prompts get through sooner so."""
        graphed = self.rounds.prompts_in_graphs(self.decodes)
        most = shape_of_prompts(self.prompts, tokens)
        if not GRAIN_TOKENS <= graphed < most.num_tokens:
            return tokens
        sooner = most.num_tokens * self.seconds(graphed) < graphed * self._seconds(most)
        return graphed if sooner else tokens

    def _cut(self, part: BatchShape, job: Job, granted: int, tokens: int, longest_s: float) -> int:
        """All prompt tokens, where the next `tokens` of one prompt are too much beside those `granted`."""
        whole = granted // GRAIN_TOKENS

        def too_long(grains: int) -> bool:
            chunk = min(tokens, (whole + grains) * GRAIN_TOKENS - granted)
            return self._seconds(with_prompt(part, chunk, job.num_found_tokens)) > longest_s

        return (whole + last_short(-(-(granted + tokens) // GRAIN_TOKENS) - whole, too_long)) * GRAIN_TOKENS


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
    round and so on since the lesser one has changed. Decodes do not save up for that: where there is no time for it,
    they have the step. O(1) a step.
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
        if tokens:  # else decodes save up for them, for an unknown time
            plan.next_up = plan.admit[: view.seats_beside(plan.run)]
        plan.run, plan.admit = decodes, ()
        budget = planned.decodes.num_tokens
    elif turn is Turn.PROMPTS:
        plan.admit = plan.admit[: view.seats_beside(plan.run)]
        plan.run, budget = begun, tokens
    plan.token_budget = min(plan.token_budget, budget)
    return plan


_MOST_SAVED = 2.0
"""Longest steps that are saved at most, or owed: no stream stalls for more than three, unless a grain takes longer."""
_WORTH_SAVING = 1.1
"""Times the prompt tokens a second for which it is worth saving: predictions are wrong by as much."""
_WORTH_AT_ONCE = 0.98
"""Of the time that prompts take if they are cut: what is only as much is no reason for a long step."""
_MOST_SAVING_STEPS = 12
"""That decodes save up for tokens that could come in grains too: meanwhile prompts wait, and the memory for them."""


class SavedTime:
    """The time that steps left of what a token of a stream may take, which is the longest step.

    Longer steps are paid from it, or owed where even the least of a prompt takes longer than can be saved. So streams
    keep their pace in the mean, and no job starts beside which they would not. O(1) a step.
    """

    def __init__(self) -> None:
        self._saved_s = 0.0
        self._longest_s = inf
        self._left_s = 0.0
        self._least_s = 0.0
        self._prompts_s = 0.0

    def expect(
        self, step_s: float, longest_s: float, *, decodes: bool = True, alone_s: float | None = None
    ) -> None:
        """The planned step is predicted to take so long, where a token may take `longest_s`; inf without a target.

        Without decodes it is a part of the next, which pays for it: so long more may be spent than was saved.
        `alone_s` is what it takes without its prompts, where it has some: those that do not get through cost nothing.
        """
        self._longest_s = longest_s
        self._least_s = -_MOST_SAVED * longest_s if decodes else -inf
        self._left_s = (longest_s if decodes else 0.0) - step_s
        self._prompts_s = 0.0 if alone_s is None else step_s - alone_s

    def observe(self, *, ran: bool, prompts: bool) -> None:
        """The planned step is done, with prompts or without; there was none unless some job `ran`."""
        if self._longest_s == inf:
            self._saved_s = 0.0
        elif ran:
            left_s = self._left_s + (0.0 if prompts else self._prompts_s)
            self._saved_s = max(self._least_s, min(self._saved_s + left_s, _MOST_SAVED * self._longest_s))

    def afford(self, planned: Round, tokens: int, wanted: int, longest_s: float) -> int:
        """Prompt tokens of this round, where `tokens` keep to the longest step and more are wanted.

        All that are wanted, where that is saved already and no dearer than to cut them. More of them less often, and
        none while decodes save up, if prompts get through sooner so and it is soon saved.
        """
        most_s = longest_s * (1 + _MOST_SAVED)
        many = planned.most_tokens(max(most_s, planned.seconds(GRAIN_TOKENS)), wanted)
        many_s = planned.seconds(many)
        is_saved = min(many_s, most_s) <= longest_s + self._saved_s
        if not tokens or _gets_more_through(planned, tokens, (many, many_s), longest_s):
            return many if is_saved else 0
        at_once = is_saved and many >= wanted and many_s <= _WORTH_AT_ONCE * _cut_s(planned, tokens, many)
        return many if at_once else tokens


def _cut_s(planned: Round, tokens: int, many: int) -> float:
    """Seconds of rounds with `tokens` each until there were as many, less those of the decodes in all but one."""
    rounds, rest = divmod(many, tokens)
    rounds_s = rounds * planned.seconds(tokens) + (planned.seconds(rest) if rest else 0.0)
    return rounds_s - (rounds - (not rest)) * planned.decodes_s


def _gets_more_through(planned: Round, tokens: int, many: tuple[int, float], longest_s: float) -> bool:
    """Whether `many` in so many seconds, and in those of saving up for them, are more than `tokens` in every round.

    Not if decodes leave so little that they would save up for long.
    """
    more, more_s = many
    decodes_s = planned.decodes_s
    if decodes_s >= longest_s:
        return False
    saving_steps = max(0.0, more_s - longest_s) / (longest_s - decodes_s)
    if saving_steps > _MOST_SAVING_STEPS:
        return False
    return more * planned.seconds(tokens) > _WORTH_SAVING * tokens * (more_s + saving_steps * decodes_s)
