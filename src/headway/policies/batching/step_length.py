"""Chooses the tokens of a step that no target between tokens bounds."""

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
"""Each tried step length is this share of the one before."""
_COME_MEANWHILE = 7
"""Arrivals assumed for each waiting prompt until none waits: right at seven eighths of an engine's capacity
(docs/notebook.md).
"""

_Delay = Callable[[float, float], float]


def tokens_worth_a_step(planned: MixedStep, most_tokens: int, num_behind: int) -> int:
    """The efficient number of tokens for a step, decodes included; `most_tokens` while step times are unknown.

    The number minimises the total delay while the prompts of the longest possible step are computed in steps with a
    share of them each. `num_behind` jobs have prompts still to compute, including those without room. The delay of a
    share is the sum of

    - the steps themselves, each with its part of the decodes, for the `num_behind` jobs and seven times as many
      arrivals meanwhile. In the long run the ratio of decodes to prompts stays as it is now, so fewer prompt tokens
      a step mean fewer answers running at a time.
    - the time that prompts add to the decodes, for every running answer.
    - one such step for each of the answers that will begin, taken to be as many as decode now: each of their tokens
      takes a step. Of n prompts the last has none behind it, so (n - 1) / n of this counts.

    Shares are tried, each a quarter smaller than the last, while the delay falls. Where CUDA graphs hold a step the
    delay may fall again, so the tokens that they hold are tried too. A lone prompt is not split. O(prompts), and two
    predictions of a step's time for each share tried: O(log tokens).

    Source: Little's law over all jobs present. Sarathi-Serve (OSDI 2024, section 3) lets users measure the knee of
    throughput over tokens a step; here the step-time model gives it.
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
        """Total delay with this share of the prompts; a long-run step has the share `whole` of both. 0 if unknown."""
        whole_s = planned.cost.step_s(together(scaled(decodes, whole), scaled(prompts, whole)))
        more_s = planned.cost.step_s(together(decodes, scaled(prompts, share))) - alone_s
        if not whole_s:
            return 0.0
        return waiting * whole_s / whole + decodes.num_jobs * more_s / share + beginning * whole_s

    least_share = GRAIN_TOKENS / many
    share, its_delay_s = _least_delay(delay_s, 1.0, 1.0, least_share)
    graphed = planned.graphed_prompts
    if GRAIN_TOKENS <= graphed < share * many:
        # In the long run decodes become as many as prompts make them, so graphs hold the same share of both.
        in_proportion = (1 + decodes.num_tokens / graphed) / (1 + decodes.num_tokens / many)
        shorter, shorter_delay_s = _least_delay(delay_s, graphed / many, in_proportion, least_share)
        if shorter_delay_s < its_delay_s:
            return shorter
    return share


def _least_delay(
    delay_s: _Delay, first: float, in_proportion: float, least_share: float
) -> tuple[float, float]:
    """Try shares, each a quarter smaller, while the delay falls; return the best share and its delay.

    `in_proportion`: the whole, as a multiple of the share. (1, inf) if the first delay is unknown.
    """
    share, found, least_s = first, 1.0, inf
    while share >= least_share and 0 < (its_delay_s := delay_s(share, share * in_proportion)) < least_s:
        found, least_s = share, its_delay_s
        share *= _SHORTER
    return found, least_s


_OTHERS_COME = 3.0
"""Prompts are computed this many times faster than the present ones need, since arriving jobs will be due before
some.
"""
_LONGER = 4 / 3
"""Each tried step length has this many times the prompt tokens of the one before."""

_Due = tuple[float, int]
"""Seconds until a first token is due, and the prompt tokens still to compute for it."""


def tokens_for_first_tokens(
    planned: MixedStep, order: KnowsLate, now_s: float, most_tokens: int, least_tokens: int
) -> int:
    """The tokens of a step with which first tokens come in time, decodes included, between the two bounds.

    The smallest number with which all prompts that can have their first token in time (in progress, or with room)
    finish within a third of their remaining time, in steps of this size. Prompts that even the longest step could not
    save are ignored. O(prompts), and with such targets O(log tokens) predictions of a step's time.
    """
    dues = _dues(order.on_time(planned.prompts, now_s), now_s)
    alone = planned.decodes
    whole = shape_of_prompts(planned.prompts, most_tokens - alone.num_tokens)
    if not dues or not whole.num_tokens:
        return least_tokens

    def token_s(prompt_tokens: int) -> float:
        """Seconds for each prompt token in steps with `prompt_tokens` of them."""
        part = scaled(whole, prompt_tokens / whole.num_tokens)
        return planned.cost.step_s(together(alone, part)) / prompt_tokens

    return alone.num_tokens + _fewest(whole.num_tokens, least_tokens - alone.num_tokens, dues, token_s)


def _dues(in_time: Iterable[Job], now_s: float) -> Sequence[_Due]:
    """The due times and remaining tokens of these prompts, earliest first."""
    deadlines = [(job.ttft_deadline_s, left_tokens(job)) for job in in_time]
    # A job with no tokens left has its first token under way.
    return sorted((due_s - now_s, left) for due_s, left in deadlines if due_s is not None and left)


def _fewest(most: int, tokens: int, dues: Sequence[_Due], token_s: Callable[[int], float]) -> int:
    """The smallest number of prompt tokens a step, from `tokens` to `most`, with which all prompts are in time."""
    enough_s = _slowest_s(dues, token_s(most)) / _OTHERS_COME
    while tokens < most and token_s(tokens) > enough_s:
        tokens = min(most, int(tokens * _LONGER) + 1)
    return tokens


def _slowest_s(dues: Sequence[_Due], fastest_s: float) -> float:
    """Longest time for a prompt token with which all prompts, computed in turn, are in time; lost ones are ignored."""
    ahead, slowest_s = 0, inf
    for due_s, left in dues:
        if (ahead + left) * fastest_s <= due_s:
            ahead += left
            slowest_s = min(slowest_s, due_s / ahead)
    return slowest_s
