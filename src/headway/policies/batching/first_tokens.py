"""How long a step has to be for first tokens to come in time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf

from headway.core.job import Job
from headway.policies.batching.rounds import Rounds
from headway.policies.batching.step_shapes import left_tokens, scaled, shape_of_prompts
from headway.policies.batching.step_work import StepWork
from headway.policies.order import KnowsLate

_OTHERS_COME = 3.0
"""Prompts go through so many times as fast as those that are here need: others that come will be due before some."""
_LONGER = 4 / 3
"""Steps are tried each with so many times the prompt tokens of the one before."""

_Due = tuple[float, int]
"""In how many seconds a first token is due, and the prompt tokens that are still to compute for it."""


def tokens_for_first_tokens(
    rounds: Rounds, order: KnowsLate, now_s: float, work: StepWork, least_tokens: int
) -> int:
    """The tokens that a planned round is to have, decodes and all, at least so many and at most the plan's own.

    As few as let the prompts that can have their first token in time, begun or with room, get through in a third of the
    time that they have, all in rounds like this; those that even the longest could not save are left out.
    O(prompts), and where some have such a target a prediction of a step's time for each that is a third longer: O(log
    tokens).
    """
    dues = _dues(order.on_time(work.prompts, now_s), now_s)
    alone = work.decodes
    whole = shape_of_prompts(work.prompts, work.most_tokens - alone.num_tokens)
    if not dues or not whole.num_tokens:
        return least_tokens

    def token_s(prompt_tokens: int) -> float:
        """Seconds that a prompt token takes in rounds with so many of them."""
        part = scaled(whole, prompt_tokens / whole.num_tokens)
        return rounds.seconds(alone, part) / prompt_tokens

    return alone.num_tokens + _fewest(whole.num_tokens, least_tokens - alone.num_tokens, dues, token_s)


def _dues(in_time: Iterable[Job], now_s: float) -> Sequence[_Due]:
    """What is due of these, the first due first."""
    deadlines = [(job.ttft_deadline_s, left_tokens(job)) for job in in_time]
    # One with nothing left has its first token under way.
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
