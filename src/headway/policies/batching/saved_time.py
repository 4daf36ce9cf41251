"""Saves the time that steps leave of a stream's pace, and spends it on longer steps."""

from __future__ import annotations

from math import inf

from headway.policies.batching.mixed_step import MixedStep
from headway.policies.batching.step_shapes import GRAIN_TOKENS

_MOST_SAVED = 2.0
"""Most time saved or owed, in longest steps: no stream stalls for more than three, unless the minimum chunk takes
longer.
"""
_WORTH_SAVING = 1.1
"""Gain in prompt tokens a second from which saving is worth it, since predictions may be off by as much."""
_WORTH_AT_ONCE = 0.98
"""A long step must finish prompts in less than this share of the time that cutting them would take."""
_MOST_SAVING_STEPS = 12
"""Most steps for which decodes save if tokens could also come in small chunks: prompts, and their memory, wait
meanwhile.
"""


class SavedTime:
    """The time that steps left unused, compared with the pace of a token of a stream (the longest step).

    Longer steps are paid from it, or owed if even the smallest chunk takes longer than can be saved. Streams keep their
    mean pace, and no job starts that would break it. O(1) a step.
    """

    def __init__(self) -> None:
        self._saved_s = 0.0
        self._longest_s = inf
        self._left_s = 0.0
        self._prompts_s = 0.0

    def expect(self, step_s: float, longest_s: float, *, alone_s: float | None = None) -> None:
        """The planned step is predicted to take `step_s`, where a token may take `longest_s`; inf without a target.

        `alone_s` is its time without its prompts, if it has some: prompts that do not run cost nothing.
        """
        self._longest_s = longest_s
        self._left_s = longest_s - step_s
        self._prompts_s = 0.0 if alone_s is None else step_s - alone_s

    def observe(self, *, ran: bool, prompts: bool) -> None:
        """The planned step is done, with prompts or without; nothing is counted unless some job `ran`."""
        if self._longest_s == inf:
            self._saved_s = 0.0
        elif ran:
            left_s = self._left_s + (0.0 if prompts else self._prompts_s)
            most_s = _MOST_SAVED * self._longest_s
            self._saved_s = max(-most_s, min(self._saved_s + left_s, most_s))

    def afford(self, planned: MixedStep, tokens: int, wanted: int, longest_s: float) -> int:
        """Prompt tokens of this step, given that `tokens` keep to the longest step and `wanted` are wanted.

        Returns all that are wanted if that time is saved and no more expensive than cutting the prompts. Returns more
        tokens less often, and none while decodes save, if prompts finish sooner that way and the time is soon saved.
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
    """Seconds to compute `many` tokens in steps of `tokens` each, without the decodes of all steps but one."""
    steps, rest = divmod(many, tokens)
    steps_s = steps * planned.seconds(tokens) + (planned.seconds(rest) if rest else 0.0)
    return steps_s - (steps - (not rest)) * planned.decodes_s


def _gets_more_through(planned: MixedStep, tokens: int, many: tuple[int, float], longest_s: float) -> bool:
    """Whether `many` tokens in one step, with the steps of saving for them, beat `tokens` in every step.

    False if decodes leave so little that saving would take long.
    """
    more, more_s = many
    decodes_s = planned.decodes_s
    if decodes_s >= longest_s:
        return False
    saving_steps = max(0.0, more_s - longest_s) / (longest_s - decodes_s)
    if saving_steps > _MOST_SAVING_STEPS:
        return False
    return more * planned.seconds(tokens) > _WORTH_SAVING * tokens * (more_s + saving_steps * decodes_s)
