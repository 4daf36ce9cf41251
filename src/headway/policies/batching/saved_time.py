"""Time that steps leave of what a token of a stream may take, and longer steps that it pays for."""

from __future__ import annotations

from math import inf

from headway.policies.batching.mixed_step import MixedStep
from headway.policies.batching.step_shapes import GRAIN_TOKENS

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
        self._prompts_s = 0.0

    def expect(self, step_s: float, longest_s: float, *, alone_s: float | None = None) -> None:
        """The planned step is predicted to take so long, where a token may take `longest_s`; inf without a target.

        `alone_s` is what it takes without its prompts, where it has some: those that do not get through cost nothing.
        """
        self._longest_s = longest_s
        self._left_s = longest_s - step_s
        self._prompts_s = 0.0 if alone_s is None else step_s - alone_s

    def observe(self, *, ran: bool, prompts: bool) -> None:
        """The planned step is done, with prompts or without; there was none unless some job `ran`."""
        if self._longest_s == inf:
            self._saved_s = 0.0
        elif ran:
            left_s = self._left_s + (0.0 if prompts else self._prompts_s)
            most_s = _MOST_SAVED * self._longest_s
            self._saved_s = max(-most_s, min(self._saved_s + left_s, most_s))

    def afford(self, planned: MixedStep, tokens: int, wanted: int, longest_s: float) -> int:
        """Prompt tokens of this step, where `tokens` keep to the longest step and more are wanted.

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


def _cut_s(planned: MixedStep, tokens: int, many: int) -> float:
    """Seconds of steps with `tokens` each until there were as many, less those of the decodes in all but one."""
    steps, rest = divmod(many, tokens)
    steps_s = steps * planned.seconds(tokens) + (planned.seconds(rest) if rest else 0.0)
    return steps_s - (steps - (not rest)) * planned.decodes_s


def _gets_more_through(planned: MixedStep, tokens: int, many: tuple[int, float], longest_s: float) -> bool:
    """Whether `many` in so many seconds, and in those of saving up for them, are more than `tokens` in every step.

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
