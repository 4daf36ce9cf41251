"""What decodes leave of the time that tokens may take, for a step of prompts that is worth its while."""

from __future__ import annotations

from math import inf

from headway.policies.batching.rounds import Round
from headway.policies.batching.step_shapes import GRAIN_TOKENS

_MOST = 2.0
"""Longest steps that are saved at most, or owed: no stream stalls for more than three, unless the least of a prompt
takes longer."""
_WORTH = 1.1
"""Times the prompt tokens a second for which it is worth saving: predictions are wrong by as much."""
_LESS = 0.98
"""Of the time that prompts take if they are cut: what is only as much is no reason for a long step."""
_MOST_STEPS = 12
"""That decodes save up for tokens that could come in grains too: meanwhile prompts wait, and the memory for them."""


class SavedTime:
    """Each token of a stream may take the longest step; steps that take less leave the rest, longer ones are paid, or
    owed where even the least of a prompt takes longer than can be saved.

    So streams keep their pace in the mean, and nobody starts whom they would not keep it beside. O(1) a step.
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
        """The planned step is predicted to take so long, where a token may take `longest_s`; inf where nobody says.

        Without decodes it is a part of the next, which pays for it: so long more may be spent than was saved.
        `alone_s` is what it takes without its prompts, where it has some: those that do not get through cost nothing.
        """
        self._longest_s = longest_s
        self._least_s = -_MOST * longest_s if decodes else -inf
        self._left_s = (longest_s if decodes else 0.0) - step_s
        self._prompts_s = 0.0 if alone_s is None else step_s - alone_s

    def observe(self, *, ran: bool, prompts: bool) -> None:
        """The planned step is done, with prompts or without; if nobody `ran` there was none."""
        if self._longest_s == inf:
            self._saved_s = 0.0
        elif ran:
            left_s = self._left_s + (0.0 if prompts else self._prompts_s)
            self._saved_s = max(self._least_s, min(self._saved_s + left_s, _MOST * self._longest_s))

    def afford(self, planned: Round, tokens: int, wanted: int, longest_s: float) -> int:
        """Prompt tokens of this round, where `tokens` keep to the longest step and more are wanted.

        All that are wanted, where that is saved already and no dearer than to cut them; more of them less often, none
        while decodes save up, if prompts get through sooner so and it is soon saved.
        """
        most_s = longest_s * (1 + _MOST)
        many = planned.most_tokens(max(most_s, planned.seconds(GRAIN_TOKENS)), wanted)
        many_s = planned.seconds(many)
        is_saved = min(many_s, most_s) <= longest_s + self._saved_s
        if not tokens or _gets_more_through(planned, tokens, (many, many_s), longest_s):
            return many if is_saved else 0
        at_once = is_saved and many >= wanted and many_s <= _LESS * _cut_s(planned, tokens, many)
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
    if saving_steps > _MOST_STEPS:
        return False
    return more * planned.seconds(tokens) > _WORTH * tokens * (more_s + saving_steps * decodes_s)
