"""How few prompt tokens a step may have before it is too short to be worth it."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from headway.core.batch_shape import BatchShape
from headway.errors import ConfigError
from headway.policies.batching.rounds import Rounds
from headway.policies.batching.step_shapes import (
    GRAIN_TOKENS,
    scaled,
    shape_of_prompts,
)
from headway.policies.batching.step_work import StepWork

_SHORTER = 0.75
"""Steps are tried each so much shorter than the one before."""


class ShortSteps:
    """Steps as short as they may be at hardly more cost to those who decode and those who wait.

    A long step serves nobody better: its answers wait for its prompts, and of its prompts the first for the last. What
    speaks for it is what every step costs whatever is in it, above all reading the weights, and that a step may do
    beside the decodes, which wait for memory, next to nothing. Two costs of a prompt's token are weighed against each
    other, each by how many jobs pay it:

    - What prompts add to the decodes there are, which take their steps anyway: paid by all who decode.
    - Whole steps, each with its part of the decodes. While there are always prompts to compute, every step has some,
      and fewer of them are fewer answers that run at a time: in the long run the one is to the other as it is now. Paid
      by the n whose prompts are still to compute, and by all who come before there are none: in a queue that is n long
      in the mean (M/M/1) n (1 + n) jobs are as much later as one of them is held up.

    So where prompts come now and then steps are as long as adds least to the decodes, and where many wait throughput
    decides. `most_dearer` is the share that a shorter step may cost more than any longer one for the sake of those that
    need not wait for others' prompts then, which are all but one of the n: (n - 1) / n of it. Who is alone is served at
    once. Costs need not rise as steps become shorter: where a token more than CUDA graphs hold costs much at once,
    steps that they hold are tried as well, for as much more than the one that was found.

    Source: the knee of throughput over tokens a step that Sarathi-Serve (OSDI 2024, section 3) has its users measure,
    here read off the step-time model.
    """

    def __init__(self, most_dearer: float) -> None:
        if not 0 <= most_dearer < 1:
            raise ConfigError(
                f"most_dearer is {most_dearer}; accepted: 0, which is as long as they come, to below 1"
            )
        self._most_dearer = most_dearer

    def most_tokens(self, work: StepWork, rounds: Rounds) -> int:
        """The tokens that a planned round may have, decodes and all; the plan's own while step times are unknown.

        O(prompts), and where there are some five predictions of a step's time, two more where CUDA graphs may hold it,
        and two for each that is a quarter shorter and still worth it: O(log tokens).
        """
        if not self._most_dearer:
            return work.most_tokens
        decodes = work.decodes
        prompts = shape_of_prompts(work.prompts, work.most_tokens - decodes.num_tokens)
        alone = decodes.num_jobs + len(work.prompts) < 2
        if alone or prompts.num_tokens * _SHORTER < GRAIN_TOKENS:
            return work.most_tokens
        enough = self._enough(decodes, prompts, work.behind, rounds)
        return work.most_tokens if enough == prompts.num_tokens else decodes.num_tokens + enough

    def _enough(self, decodes: BatchShape, prompts: BatchShape, behind: int, rounds: Rounds) -> int:
        """The fewest of these prompt tokens worth a step with these decodes, where so many jobs wait for prompts."""
        many = prompts.num_tokens
        alone_s = rounds.cost.step_s(decodes) if decodes.num_jobs else 0.0
        dearest = 1 + self._most_dearer * (behind - 1) / behind

        def cost(share: float, whole: float) -> float:
            """With this share of the prompts; in the long run a step has the `whole` of both. 0 if not known."""
            whole_s = rounds.seconds(scaled(decodes, whole), scaled(prompts, whole))
            more_s = rounds.seconds(decodes, scaled(prompts, share)) - alone_s
            return (
                behind * (1 + behind) * whole_s / whole + decodes.num_jobs * more_s / share
                if whole_s
                else 0.0
            )

        least_share = GRAIN_TOKENS / many
        enough, its_cost = _fewest(lambda share: cost(share, share), (1.0, inf), dearest, least_share)
        graphed = rounds.prompts_in_graphs(decodes)
        if GRAIN_TOKENS <= graphed < enough * many and self._jumps(decodes, prompts, graphed, rounds):
            # Decodes become as many as prompts make them: then graphs hold the same share of both.
            in_proportion = (1 + decodes.num_tokens / graphed) / (1 + decodes.num_tokens / many)
            start = (graphed / many, its_cost)
            shorter, _ = _fewest(
                lambda share: cost(share, share * in_proportion), start, dearest, least_share
            )
            enough = shorter or enough
        return int((enough or 1.0) * many)

    def _jumps(self, decodes: BatchShape, prompts: BatchShape, tokens: int, rounds: Rounds) -> bool:
        """Whether one prompt token more than so many costs at once as much as a shorter step may."""
        within_s, beyond_s = (
            rounds.seconds(decodes, scaled(prompts, each / prompts.num_tokens))
            for each in (tokens, tokens + 1)
        )
        return beyond_s > (1 + self._most_dearer) * within_s


def _fewest(
    cost: Callable[[float], float], start: tuple[float, float], dearest: float, least_share: float
) -> tuple[float, float]:
    """The least share that costs no more than so many times any larger one, and its cost; 0 if there is none.

    `start`: the first share that is tried, each a quarter less than the one before, and a cost to beat.
    """
    share, least = start
    found = (0.0, inf)
    while share >= least_share:
        its_cost = cost(share)
        least = min(least, its_cost)
        if not its_cost or its_cost > dearest * least:
            break
        found = (share, its_cost)
        share *= _SHORTER
    return found
