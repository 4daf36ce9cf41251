"""Prompts of a step in rank order, whether they have begun or not."""

from __future__ import annotations

from dataclasses import replace

from headway.core.job import Job
from headway.core.plan import StepPlan
from headway.core.view import StepView
from headway.policies.batching.decode_first import split_decodes
from headway.policies.batching.fitting import starts_beside
from headway.policies.batching.step_shapes import left_tokens
from headway.policies.order import Order

_MOST_NEWCOMERS = 4
"""Newcomers of a step that prompts which have begun make way for: to ask whether one can start costs a look-up."""


def by_rank(view: StepView, plan: StepPlan, order: Order) -> StepPlan:
    """The plan with its prompt tokens given by rank: a step serves who has begun first, so those that rank behind
    a newcomer get no more than it leaves, and pause if that is nothing; of newcomers count those that start in this
    step, beside each other. What the prefix cache holds is no work.
    """
    begun = split_decodes(plan.run)[1] if plan.admit else ()
    if not begun:
        return plan
    left = plan.token_budget - (len(plan.run) - len(begun)) * view.tokens_a_decode
    if sum(map(left_tokens, begun)) + left_tokens(plan.admit[0]) <= left:
        return plan
    newcomers = _starting(view, plan)
    granted: dict[Job, int] = {}
    for job in order.rank([*begun, *newcomers], view.now_s):
        granted[job] = min(left_tokens(job), max(0, left))
        left -= granted[job]
    paused = {job for job in begun if not granted[job]}
    caps = {job: granted[job] for job in begun if 0 < granted[job] < left_tokens(job)}
    return replace(plan, run=[job for job in plan.run if job not in paused], chunk_cap=caps)


def _starting(view: StepView, plan: StepPlan) -> list[Job]:
    """The first newcomers of a plan, as long as each can start beside those before it."""
    found: list[Job] = []
    room = view.free_blocks
    for job in plan.admit[: min(_MOST_NEWCOMERS, view.seats_beside(plan.run))]:
        if not starts_beside(view, found, room, job):
            break
        found.append(job)
        room -= view.blocks(job.num_tokens)
    return found
