"""Predicts the time of a step with decodes and prompt tokens, and how many tokens fit into a given time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel
from headway.core.job import Job
from headway.policies.batching.step_shapes import (
    GRAIN_TOKENS,
    left_tokens,
    scaled,
    shape_of_prompts,
    together,
    with_prompt,
)


def last_short(most: int, too_long: Callable[[int], bool]) -> int:
    """The largest number up to `most` that is not too long, 0 if none. Requires that more tokens take longer. O(log
    most) calls.
    """
    if most <= 0 or not too_long(most):
        return max(0, most)
    return max(0, bisect_left(range(most), True, key=too_long) - 1)


@dataclass(frozen=True)
class MixedStep:
    """A step of these decodes, and of tokens of these prompts, one prompt after another.

    CUDA graphs hold steps of at most `graphed_tokens`.
    """

    cost: CostModel
    decodes: BatchShape
    prompts: Sequence[Job]
    graphed_tokens: int = 0

    @cached_property
    def decodes_s(self) -> float:
        """Seconds of the decodes alone."""
        return self.cost.step_s(self.decodes)

    def seconds(self, tokens: int) -> float:
        """Seconds of the step with this number of prompt tokens."""
        return self._seconds(shape_of_prompts(self.prompts, tokens))

    def _seconds(self, part: BatchShape) -> float:
        return self.cost.step_s(together(self.decodes, part))

    @property
    def graphed_prompts(self) -> int:
        """Prompt tokens that CUDA graphs hold beside these decodes; negative if the decodes alone exceed the graphs."""
        return self.graphed_tokens - self.decodes.num_tokens

    def most_tokens(self, longest_s: float, at_most: int) -> int:
        """Prompt tokens with which the step lasts at most `longest_s`, rounded to the grain; `at_most` if all of them
        fit.

        Returns at least the minimum number of tokens, however long they take. O(prompts), and a prediction for each,
        with O(log tokens) predictions for the last.
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

    def cheap_chunk(self, most_tokens: int) -> int:
        """The smallest tried number of prompt tokens that costs no more per token beside the decodes than in one long
        step.

        The tokens cost what an average chunk costs: later chunks attend to what is before them. Each number tried
        doubles the last; returns all tokens if none is as cheap. O(log tokens) predictions.
        """
        whole = shape_of_prompts(self.prompts, most_tokens)
        many, whole_s, tokens = whole.num_tokens, self.cost.step_s(whole), GRAIN_TOKENS
        while tokens < many:
            if self._seconds(scaled(whole, tokens / many)) - self.decodes_s <= whole_s * tokens / many:
                return tokens
            tokens *= 2
        return many

    def soonest(self, tokens: int) -> int:
        """`tokens`, or the number that CUDA graphs hold if prompts finish sooner with it."""
        graphed = self.graphed_prompts
        most = shape_of_prompts(self.prompts, tokens)
        if not GRAIN_TOKENS <= graphed < most.num_tokens:
            return tokens
        sooner = most.num_tokens * self.seconds(graphed) < graphed * self._seconds(most)
        return graphed if sooner else tokens

    def _cut(self, part: BatchShape, job: Job, granted: int, tokens: int, longest_s: float) -> int:
        """How many prompt tokens fit if the next `tokens` of one prompt are too many beside those `granted`."""
        whole = granted // GRAIN_TOKENS

        def too_long(grains: int) -> bool:
            chunk = min(tokens, (whole + grains) * GRAIN_TOKENS - granted)
            return self._seconds(with_prompt(part, chunk, job.num_found_tokens)) > longest_s

        return (whole + last_short(-(-(granted + tokens) // GRAIN_TOKENS) - whole, too_long)) * GRAIN_TOKENS
