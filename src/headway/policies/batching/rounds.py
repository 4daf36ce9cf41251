"""What a round takes: a token for everyone who decodes, and so many of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel
from headway.core.job import Job
from headway.policies.batching.last_short import last_short
from headway.policies.batching.step_shapes import (
    GRAIN_TOKENS,
    left_tokens,
    shape_of_prompts,
    together,
    with_prompt,
)


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
        """What a round of these takes; 0 while nobody knows."""
        if not self.apart:
            return self.cost.step_s(together(decodes, prompts))
        return self.cost.step_s(decodes) + self.cost.step_s(prompts)

    def prompts_in_graphs(self, decodes: BatchShape) -> int:
        """Prompt tokens that CUDA graphs hold in the step that they have, beside these decodes or without."""
        return self.graphed_tokens if self.apart else self.graphed_tokens - decodes.num_tokens


def times_as_long(cost: CostModel, decodes: BatchShape, prompts: Sequence[Job]) -> float:
    """How many times as long one step takes as two, with the least of prompts; 0 where it is not known, or no question.

    Three predictions of a step's time.
    """
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
