"""How few prompt tokens a step may have before it is too short to be worth it."""

from __future__ import annotations

from math import inf

from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel
from headway.core.plan import StepPlan
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.batching.decode_first import split_decodes
from headway.policies.batching.fitting import starting
from headway.policies.batching.step_shapes import (
    GRAIN_TOKENS,
    left_tokens,
    scaled,
    shape_of_decodes,
    shape_of_prompts,
    together,
)

_SHORTER = 0.75
"""Steps are tried each so much shorter than the one before."""


class ShortSteps:
    """Steps as short as they may be at hardly more work a token.

    A long step serves nobody better: its answers wait for its prompts, and of its prompts the first for the last. What
    speaks for it is what every step costs whatever is in it, above all reading the weights. From some number of tokens
    on that is next to nothing, on an H100 with 8B parameters from some 1,000, where vLLM's default is 8,192.

    `most_dearer` is the share that a token of the shorter step may cost more than of any longer one, in both of two
    ways:

    - Whole steps, each with its part of the decodes. While there are always prompts to compute, every step has some,
      and fewer of them are fewer answers that run at a time: in the long run the one is to the other as it is now.
    - What prompts add to the decodes there are. While there are prompts only now and then, decodes take their steps
      anyway, and more steps with prompts are dear where decodes are slower beside them (adr/0011).

    Who is alone is served at once.

    Source: the knee of throughput over tokens a step that Sarathi-Serve (OSDI 2024, section 3) has its users measure,
    here read off the step-time model.
    """

    def __init__(self, cost: CostModel, most_dearer: float) -> None:
        if not 0 <= most_dearer < 1:
            raise ConfigError(
                f"most_dearer is {most_dearer}; accepted: 0, which is as long as they come, to below 1"
            )
        self._dearest = 1 + most_dearer
        self._cost = cost

    def most_tokens(self, view: StepView, plan: StepPlan) -> int:
        """The tokens that a planned step may have, decodes and all; the plan's own while step times are unknown.

        O(prompts that have begun or have room), and where there are some O(decodes) with five predictions of a step's
        time, and two more for each that is a quarter shorter and still worth it: O(log tokens).
        """
        if self._dearest == 1:
            return plan.token_budget
        decodes, begun = split_decodes(plan.run)
        prompts = [*begun, *starting(view, plan)]
        decode_tokens = len(decodes) * view.tokens_a_decode
        many = min(sum(map(left_tokens, prompts)), plan.token_budget - decode_tokens)
        if len(decodes) + len(prompts) < 2 or many * _SHORTER < GRAIN_TOKENS:
            return plan.token_budget
        alone = shape_of_decodes(decodes, view.tokens_a_decode)
        enough = self._enough(alone, shape_of_prompts(prompts, many))
        return plan.token_budget if enough == many else decode_tokens + enough

    def _enough(self, decodes: BatchShape, prompts: BatchShape) -> int:
        """The fewest prompt tokens worth a step with these decodes, where there are so many."""
        many = prompts.num_tokens
        alone_s = self._cost.step_s(decodes) if decodes.num_jobs else 0.0
        share, least_s, least_more_s = 1.0, inf, inf
        while share * many >= GRAIN_TOKENS:
            part = scaled(prompts, share)
            whole_s = self._cost.step_s(together(scaled(decodes, share), part)) / share
            more_s = (self._cost.step_s(together(decodes, part)) - alone_s) / share
            least_s, least_more_s = min(least_s, whole_s), min(least_more_s, more_s)
            if not whole_s or whole_s > self._dearest * least_s or more_s > self._dearest * least_more_s:
                break
            share *= _SHORTER
        return int(min(1.0, share / _SHORTER) * many)
