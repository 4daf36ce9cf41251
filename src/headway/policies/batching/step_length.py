"""How many tokens a step has where no target between tokens bounds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf

from headway.core.batch_shape import BatchShape
from headway.core.job import Job
from headway.core.plan import StepPlan
from headway.core.view import StepView
from headway.policies.batching.admission import starting
from headway.policies.batching.decode_first import split_decodes
from headway.policies.batching.rounds import Rounds
from headway.policies.batching.step_shapes import (
    GRAIN_TOKENS,
    left_tokens,
    scaled,
    shape_of_decodes,
    shape_of_prompts,
)
from headway.policies.protocols import KnowsLate


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """All who decode, as a step of their own, and the prompts that have begun or have room; `most_tokens` for all.

    `behind` counts the jobs whose prompts are still to compute, those without room included.
    """

    decodes: BatchShape
    prompts: Sequence[Job]
    most_tokens: int
    behind: int


def step_work(view: StepView, plan: StepPlan) -> StepWork:
    """That of a plan whose prompts stand behind its decodes. O(running + newcomers with a place)."""
    decodes, begun = split_decodes(plan.run)
    return StepWork(
        decodes=shape_of_decodes(decodes, view.tokens_a_decode),
        prompts=[*begun, *starting(view, plan)],
        most_tokens=plan.token_budget,
        behind=len(begun) + len(view.waiting) + len(view.swapped),
    )


_SHORTER = 0.75
"""Steps are tried each so much shorter than the one before."""
_COME_MEANWHILE = 3
"""For each that waits, before none does: where three quarters of an engine's time are asked for. Chosen in adr/0028."""

_Cost = Callable[[float, float], float]


def tokens_worth_a_step(work: StepWork, rounds: Rounds) -> int:
    """The tokens that a planned round may have, decodes and all; the plan's own while step times are unknown.

    A long step serves nobody better: its answers wait for its prompts, and of its prompts the first for the last. What
    speaks for it is what every step costs whatever is in it, above all reading the weights, and that a step may do
    beside the decodes, which wait for memory, next to nothing. How long all are held up while the prompts that the
    longest step has are computed, in steps with a share of them each, is the sum of

    - these steps, each with its part of the decodes: for the n whose prompts are still to compute, and three times as
      many who come meanwhile. While there are always prompts, every step has some, and fewer of them are fewer answers
      that run at a time: in the long run the one is to the other as it is now.
    - what the prompts add to the decodes there are, which take their steps anyway: for all who decode.
    - one such step: for as many as decode now. So many answers begin while there are always prompts, each of whose
      tokens takes one. Of n the last has none behind it: (n - 1) / n of it.

    The share with the least is taken, each a quarter less than the one before while that is less. Costs may fall again
    where CUDA graphs hold a step, so those that they hold are tried as well. A prompt that is alone is not cut.

    O(prompts), and two predictions of a step's time for each that is tried: O(log tokens).

    Source: Little's law over all who are there; the knee of throughput over tokens a step, which Sarathi-Serve (OSDI
    2024, section 3) has its users measure, is read off the step-time model.
    """
    decodes = work.decodes
    prompts = shape_of_prompts(work.prompts, work.most_tokens - decodes.num_tokens)
    alone = decodes.num_jobs + len(work.prompts) < 2
    if alone or prompts.num_tokens * _SHORTER < GRAIN_TOKENS:
        return work.most_tokens
    share = _least_share(decodes, prompts, work.behind, rounds)
    return work.most_tokens if share == 1 else decodes.num_tokens + int(share * prompts.num_tokens)


def _least_share(decodes: BatchShape, prompts: BatchShape, behind: int, rounds: Rounds) -> float:
    """The share of these prompt tokens that holds all up the least, where so many jobs wait for prompts."""
    many = prompts.num_tokens
    alone_s = rounds.cost.step_s(decodes) if decodes.num_jobs else 0.0
    waiting, beginning = behind * (1 + _COME_MEANWHILE), decodes.num_jobs * (behind - 1) / behind

    def cost(share: float, whole: float) -> float:
        """With this share of the prompts; in the long run a step has the `whole` of both. 0 if not known."""
        whole_s = rounds.seconds(scaled(decodes, whole), scaled(prompts, whole))
        more_s = rounds.seconds(decodes, scaled(prompts, share)) - alone_s
        if not whole_s:
            return 0.0
        return waiting * whole_s / whole + decodes.num_jobs * more_s / share + beginning * whole_s

    least_share = GRAIN_TOKENS / many
    share, its_cost = _cheapest(cost, 1.0, 1.0, least_share)
    graphed = rounds.prompts_in_graphs(decodes)
    if GRAIN_TOKENS <= graphed < share * many:
        # Decodes become as many as prompts make them: then graphs hold the same share of both.
        in_proportion = (1 + decodes.num_tokens / graphed) / (1 + decodes.num_tokens / many)
        shorter, shorter_cost = _cheapest(cost, graphed / many, in_proportion, least_share)
        if shorter_cost < its_cost:
            return shorter
    return share


def _cheapest(cost: _Cost, first: float, in_proportion: float, least_share: float) -> tuple[float, float]:
    """Of shares each a quarter less than the one before, the last that costs less than that, and its cost.

    `in_proportion`: how many times its share the whole has. All of it, for infinity, if the first is not known.
    """
    share, found, least = first, 1.0, inf
    while share >= least_share and 0 < (its_cost := cost(share, share * in_proportion)) < least:
        found, least = share, its_cost
        share *= _SHORTER
    return found, least


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
