"""How many tokens a step has where no target between tokens bounds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf

from headway.core.batch_shape import BatchShape
from headway.core.job import Job
from headway.policies.batching.mixed_step import MixedStep
from headway.policies.batching.step_shapes import (
    GRAIN_TOKENS,
    left_tokens,
    scaled,
    shape_of_prompts,
    together,
)
from headway.policies.protocols import KnowsLate

_SHORTER = 0.75
"""Each step length tried is this share of the one before."""
_COME_MEANWHILE = 7
"""Arrivals assumed for each waiting prompt, before none waits: right at seven eighths of an engine's capacity
(docs/notebook.md)."""

_Delay = Callable[[float, float], float]


def tokens_worth_a_step(planned: MixedStep, most_tokens: int, num_behind: int) -> int:
    """The tokens that a step may have, decodes included; `most_tokens` while step times are unknown.

    The number minimises the total delay while the prompts of the longest step are computed, in steps with a share of
    them each. `num_behind` jobs have prompts still to compute, those without room included. A share is charged for

    - the steps themselves, each with its part of the decodes, for the `num_behind` jobs and seven times as many that
      arrive meanwhile. In the long run decodes are to prompts as they are now: fewer prompt tokens a step are fewer
      answers that run at a time.
    - what the prompts add to the decodes, which take their steps anyway, for every running answer.
    - one such step for as many answers as decode now: so many begin, and each of their tokens takes a step. Of n the
      last has no prompt behind it, so (n - 1) / n of it counts.

    Shares are tried each a quarter less than the one before, while the delay falls. Where CUDA graphs hold a step the
    delay may fall again, so the tokens that they hold are tried too. A lone prompt is not split.
    O(prompts), and two predictions of a step's time for each share tried: O(log tokens).

    Source: Little's law over all jobs present; the knee of throughput over tokens a step, which Sarathi-Serve (OSDI
    2024, section 3) has its users measure, is read off the step-time model.
    """
    decodes = planned.decodes
    prompts = shape_of_prompts(planned.prompts, most_tokens - decodes.num_tokens)
    alone = decodes.num_jobs + len(planned.prompts) < 2
    if alone or prompts.num_tokens * _SHORTER < GRAIN_TOKENS:
        return most_tokens
    share = _least_share(planned, prompts, num_behind)
    return most_tokens if share == 1 else decodes.num_tokens + int(share * prompts.num_tokens)


def _least_share(planned: MixedStep, prompts: BatchShape, num_behind: int) -> float:
    """The share of these prompt tokens with the least total delay."""
    decodes, many = planned.decodes, prompts.num_tokens
    alone_s = planned.decodes_s if decodes.num_jobs else 0.0
    waiting, beginning = num_behind * (1 + _COME_MEANWHILE), decodes.num_jobs * (num_behind - 1) / num_behind

    def delay_s(share: float, whole: float) -> float:
        """With this share of the prompts; in the long run a step has the `whole` of both. 0 if not known."""
        whole_s = planned.cost.step_s(together(scaled(decodes, whole), scaled(prompts, whole)))
        more_s = planned.cost.step_s(together(decodes, scaled(prompts, share))) - alone_s
        if not whole_s:
            return 0.0
        return waiting * whole_s / whole + decodes.num_jobs * more_s / share + beginning * whole_s

    least_share = GRAIN_TOKENS / many
    share, its_delay_s = _least_delay(delay_s, 1.0, 1.0, least_share)
    graphed = planned.graphed_prompts
    if GRAIN_TOKENS <= graphed < share * many:
        # Decodes become as many as prompts make them: then graphs hold the same share of both.
        in_proportion = (1 + decodes.num_tokens / graphed) / (1 + decodes.num_tokens / many)
        shorter, shorter_delay_s = _least_delay(delay_s, graphed / many, in_proportion, least_share)
        if shorter_delay_s < its_delay_s:
            return shorter
    return share


def _least_delay(
    delay_s: _Delay, first: float, in_proportion: float, least_share: float
) -> tuple[float, float]:
    """Of shares each a quarter less than the one before, the last with less delay than that, and its delay.

    `in_proportion`: the whole in times its share. (1, inf) if the delay of the first is not known.
    """
    share, found, least_s = first, 1.0, inf
    while share >= least_share and 0 < (its_delay_s := delay_s(share, share * in_proportion)) < least_s:
        found, least_s = share, its_delay_s
        share *= _SHORTER
    return found, least_s


_OTHERS_COME = 3.0
"""Prompts go through so many times as fast as those here need: jobs that come will be due before some."""
_LONGER = 4 / 3
"""Each step length tried has so many times the prompt tokens of the one before."""

_Due = tuple[float, int]
"""In how many seconds a first token is due, and the prompt tokens that are still to compute for it."""


def tokens_for_first_tokens(
    planned: MixedStep, order: KnowsLate, now_s: float, most_tokens: int, least_tokens: int
) -> int:
    """The tokens that a step is to have for first tokens to come in time, decodes included, between the two bounds.

    They are as few as let the prompts that can have their first token in time, begun or with room, get through in a
    third of the time that they have, all in steps like this. Prompts that even the longest step could not save are
    left out. O(prompts), and where some have such a target O(log tokens) predictions of a step's time.
    """
    dues = _dues(order.on_time(planned.prompts, now_s), now_s)
    alone = planned.decodes
    whole = shape_of_prompts(planned.prompts, most_tokens - alone.num_tokens)
    if not dues or not whole.num_tokens:
        return least_tokens

    def token_s(prompt_tokens: int) -> float:
        """Seconds that a prompt token takes in steps with so many of them."""
        part = scaled(whole, prompt_tokens / whole.num_tokens)
        return planned.cost.step_s(together(alone, part)) / prompt_tokens

    return alone.num_tokens + _fewest(whole.num_tokens, least_tokens - alone.num_tokens, dues, token_s)


def _dues(in_time: Iterable[Job], now_s: float) -> Sequence[_Due]:
    """What is due of these, the first due first."""
    deadlines = [(job.ttft_deadline_s, left_tokens(job)) for job in in_time]
    # A job with nothing left has its first token under way.
    return sorted((due_s - now_s, left) for due_s, left in deadlines if due_s is not None and left)


def _fewest(most: int, tokens: int, dues: Sequence[_Due], token_s: Callable[[int], float]) -> int:
    """Prompt tokens a step, from `tokens` on and at most `most`, that get all through in time, and others that come."""
    enough_s = _slowest_s(dues, token_s(most)) / _OTHERS_COME
    while tokens < most and token_s(tokens) > enough_s:
        tokens = min(most, int(tokens * _LONGER) + 1)
    return tokens


def _slowest_s(dues: Sequence[_Due], fastest_s: float) -> float:
    """Seconds that a prompt token may take at most, one prompt after another; without those lost at the fastest."""
    ahead, slowest_s = 0, inf
    for due_s, left in dues:
        if (ahead + left) * fastest_s <= due_s:
            ahead += left
            slowest_s = min(slowest_s, due_s / ahead)
    return slowest_s
