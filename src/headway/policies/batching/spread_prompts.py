"""How many prompt tokens a step computes where memory or seats, and not computing, keep others waiting."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf

from headway.core.cost import CostModel
from headway.core.fill import uncomputed_tokens
from headway.core.job import Job
from headway.core.plan import StepPlan
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.batching.answer_lengths import AnswerLengths
from headway.policies.batching.decode_first import split_decodes
from headway.policies.batching.step_shapes import GRAIN_TOKENS, shape_of_decodes, with_prompt
from headway.policies.order import Order, knows_late

URGENT_TIMES = 12
"""So many times as fast go the prompts of those who can still meet their targets."""
CLEARLY_LESS = 0.9
"""What is less than so much of something else is taken to be less, and not an error of the prediction."""


class SpreadPrompts:
    """Prompts that have room are computed little by little beside the decodes, as long as others have none.

    Who has no room can start when an answer ends, however soon the prompts before it are computed. Answers bring a
    token a step each, so one of them ends in as many steps as an answer has tokens, on average, divided by those that
    run; prompts get `share` of what it would take to be done by then. So every step has some prompt tokens beside its
    decodes, instead of a few having thousands, which hold up all decodes, and the most none. On a GPU the former is
    less work too: decoding waits for memory and prompts for arithmetic, so that some prompt tokens beside decodes
    cost next to nothing. Where the step-time model does not find it so, as on CPUs, steps are as long as they come.
    Those who can still meet their targets get more at a time, up to all they lack.

    Source: the decode-maximal batches of Sarathi (Agrawal et al. 2023), with chunks that balance what starts and ends.
    """

    def __init__(self, cost: CostModel, share: float) -> None:
        if not 0 <= share < inf:
            raise ConfigError(f"spread is {share}; accepted: 0, which is not at all, or more")
        self.share = share
        self._cost = cost
        self._answers = AnswerLengths()

    def finished(self, job: Job) -> None:
        """Learn how long answers are."""
        self._answers.add(job.num_output_tokens)

    def most_tokens(
        self, view: StepView, plan: StepPlan, order: Order, leaving: Collection[Job]
    ) -> tuple[int, bool]:
        """The tokens that a planned step may have, and whether they are meant for some who can be in time.

        Those of the plan where nobody is kept waiting, nobody decodes, or it would save nothing. O(prompts that have
        begun or have room), and where there are some O(decodes) with three predictions of a step's time.
        """
        answer_tokens = self._answers.expected_tokens
        num_queued = len(view.waiting) + len(view.swapped) - len(leaving)
        if not (self.share and answer_tokens and num_queued):
            return plan.token_budget, False
        decodes, begun = split_decodes(plan.run)
        newcomers = _with_room(view, plan)
        prompts = [*begun, *newcomers]
        if not (decodes and prompts) or len(newcomers) == num_queued:
            return plan.token_budget, False
        urgent = _in_time(prompts, order, view.now_s)
        urgent_tokens = sum(map(uncomputed_tokens, urgent))
        patient_tokens = sum(map(uncomputed_tokens, prompts)) - urgent_tokens
        pace = self.share * len(decodes) / answer_tokens
        tokens = patient_tokens * pace + urgent_tokens * min(1.0, URGENT_TIMES * pace)
        few = max(GRAIN_TOKENS, round(tokens))
        many = min(plan.token_budget - len(decodes), urgent_tokens + patient_tokens)
        if few >= many or not self._saves(decodes, few, many):
            return plan.token_budget, False
        return len(decodes) + few, bool(urgent)

    def _saves(self, decodes: Sequence[Job], few: int, many: int) -> bool:
        """Whether a prompt token costs clearly less beside few others than beside many."""
        alone = shape_of_decodes(decodes)
        alone_s = self._cost.step_s(alone)
        few_s, many_s = (self._cost.step_s(with_prompt(alone, tokens, 0)) - alone_s for tokens in (few, many))
        return few_s / few < CLEARLY_LESS * many_s / many


def _with_room(view: StepView, plan: StepPlan) -> list[Job]:
    """The first of those who may start in this step, as many as have a place and blocks."""
    found, room = [], view.free_blocks
    for job in plan.admit[: view.max_run - len(plan.run)]:
        room -= view.blocks(job.num_tokens)
        if room < 0:
            break
        found.append(job)
    return found


def _in_time(prompts: Sequence[Job], order: Order, now_s: float) -> Sequence[Job]:
    """Those with targets that can still meet them; all with targets, as far as an order cannot tell."""
    if knows_late(order):
        return order.on_time(prompts, now_s)
    return [job for job in prompts if job.slo]
