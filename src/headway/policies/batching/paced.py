"""The most deserving jobs, in steps as long as the targets between tokens allow."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf

from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job, has_prompts
from headway.core.plan import StepOutcome, StepPlan
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.batching.admission import starting, starts_beside
from headway.policies.batching.mixed_step import MixedStep, last_short
from headway.policies.batching.promised_share import PromisedShare
from headway.policies.batching.saved_time import SavedTime
from headway.policies.batching.step_length import tokens_for_first_tokens, tokens_worth_a_step
from headway.policies.batching.step_shapes import (
    GRAIN_TOKENS,
    decode_shape,
    left_tokens,
    shape_of_decodes,
    split_decodes,
)
from headway.policies.batching.top_jobs import TopJobs
from headway.policies.protocols import Order, knows_late


@dataclass(frozen=True, slots=True)
class Pausing:
    """The decodes in a hurry, which go on, and the others by rank, of which the last may pause.

    A decode is in a hurry if it has a target between tokens, unless that is at least twice the longest step and the
    job is ahead of it. `contexts` are the context tokens of those in a hurry with the first 0, 1, 2 ... of the others.
    """

    hurried: Sequence[Job]
    others: Sequence[Job]
    contexts: Sequence[int]
    tokens_a_decode: int

    def shape(self, count: int) -> BatchShape:
        """A step of those in a hurry and the first so many others."""
        return decode_shape(len(self.hurried) + count, self.contexts[count], self.tokens_a_decode)


def pausing(view: StepView, order: Order, decodes: Sequence[Job], longest_s: float) -> Pausing:
    """Which of these may pause in a step that may take so long. O(decodes), and a ranking of them."""
    others = [
        job
        for job in order.rank(decodes, view.now_s)
        if job.slo.tbt_s is None or _is_ahead(job, longest_s, view, order)
    ]
    patient = set(others)
    hurried = [job for job in decodes if job not in patient]
    hurried_tokens = sum(job.num_computed_tokens for job in hurried)
    contexts = list(accumulate((job.num_computed_tokens for job in others), initial=hurried_tokens))
    return Pausing(hurried, others, contexts, view.tokens_a_decode)


def _is_ahead(job: Job, longest_s: float, view: StepView, order: Order) -> bool:
    """Whether a decode's own pace is so much slower that it may sit a step out."""
    own_s = (job.slo.tbt_s or inf) * view.decoded_tokens
    return knows_late(order) and own_s >= 2 * longest_s and order.latest_start_s(job) > view.now_s + own_s


_MOST_NEWCOMERS = 4
"""Newcomers of a step that prompts which have begun make way for: to ask whether one can start costs a look-up."""


def in_turn(view: StepView, plan: StepPlan, order: Order) -> StepPlan:
    """The plan with its prompt tokens given by rank, after those whose first token is due (`due_first_tokens`).

    A step serves prompts that have begun first, so those that come after a newcomer get no more than it leaves, and
    pause if that is nothing. Newcomers count that start in this step, beside each other. What the prefix cache holds
    is no work.
    """
    begun = split_decodes(plan.run)[1]
    due = _due(view, plan, order, begun)
    if due and plan.admit:
        plan.admit = [
            *(job for job in due if job not in begun),
            *(job for job in plan.admit if job not in due),
        ]
    if not begun or not (plan.admit or due):
        return plan
    left = plan.token_budget - (len(plan.run) - len(begun)) * view.tokens_a_decode
    needed = sum(map(left_tokens, begun)) + (left_tokens(plan.admit[0]) if plan.admit else 0)
    if needed <= left:
        return plan
    newcomers = _starting(view, plan) if plan.admit else []
    first = {job: None for job in due if job in begun or job in newcomers}
    others = order.rank([job for job in (*begun, *newcomers) if job not in first], view.now_s)
    granted: dict[Job, int] = {}
    for job in (*first, *others):
        granted[job] = min(left_tokens(job), max(0, left))
        left -= granted[job]
    paused = {job for job in begun if not granted[job]}
    caps = {job: granted[job] for job in begun if 0 < granted[job] < left_tokens(job)}
    return replace(plan, run=[job for job in plan.run if job not in paused], chunk_cap=caps)


def _due(view: StepView, plan: StepPlan, order: Order, begun: Sequence[Job]) -> Mapping[Job, None]:
    """Of the prompts that have begun or have room those whose first token is due, in turn."""
    if not knows_late(order) or not (begun or plan.admit):
        return {}
    return dict.fromkeys(order.due_first_tokens(_with_room_now(view, plan, begun), view.now_s))


def _with_room_now(view: StepView, plan: StepPlan, begun: Sequence[Job]) -> Iterator[Job]:
    """The prompts of a step; newcomers are looked for when they are asked for."""
    yield from begun
    yield from starting(view, plan)


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


SAFE_BUDGET_TOKENS = 512
"""A step's budget while predictions of its time are not to be trusted: Sarathi-Serve's."""
_PROMPTS_SHARE = 0.3
"""Of the longest step, kept from decodes that can wait for prompts in time or that have begun."""
_STEADY_STEPS = 64
"""Steps that are looked ahead for whether decodes stay within the target between tokens."""


class Paced:
    """`top-jobs`, in steps as long as the decodes' tightest target between tokens allows; without one, as is worth it.

    `share` of a target counts; the rest is for what predictions leave out. The target of a late job counts too, since a
    client reads along. Prompts get the time that is left beside the decodes, by rank, begun or not. A long prompt is
    thus cut into chunks: it stalls no stream and keeps no short prompt waiting. With `saving` decodes save up for
    prompts where no time is left, or where more prompt tokens less often get through sooner (`SavedTime`): streams keep
    their pace in the mean. Where the decodes alone would take too long, some pause (`Pausing`).

    Without such a target a step has the tokens that minimise total delay, with `short_steps` (`tokens_worth_a_step`),
    and more where first tokens would be late otherwise (`tokens_for_first_tokens`). With a `decode_share` decodes get
    that part of the time in which prompts are computed instead: steps take as long in the mean as the decodes alone,
    over the share. A target between tokens may leave prompts less.

    Where predictions are wrong, or no pause helps, a step with a target has SAFE_BUDGET_TOKENS; while steps have no
    predicted time, the engine's own budget. Costs: those of `top-jobs`, O(running), and some twenty predictions of a
    step's time where there are targets or prompts.
    Source: the idea of Sarathi-Serve (OSDI 2024) with the budget taken from the step-time model, step by step.
    """

    def __init__(
        self,
        cost: CostModel | None = None,
        *,
        share: float = 0.85,
        short_steps: bool = True,
        saving: bool = True,
        decode_share: float | None = None,
    ) -> None:
        if not 0 < share <= 1:
            raise ConfigError.of("share", share, "a share of the target above 0, at most 1")
        self.share = share
        self._promised = None if decode_share is None else PromisedShare(decode_share)
        self.short_steps = short_steps
        self.saving = saving
        self._cost: CostModel = cost or UnknownCost()
        self._top = TopJobs()
        self._saved = SavedTime()
        self._prompts_wait = False

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """The top jobs, prompts by rank, within the tokens that the tightest target leaves or that are worth a step."""
        return in_turn(view, self._paced(view, order, leaving), order)

    def _paced(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """The top jobs, and the budget; prompts that have begun still come before those that start."""
        plan = self._top.plan(view, order, leaving)
        decodes, begun = split_decodes(plan.run)
        longest_s = self._longest_s(view, decodes)
        self._prompts_wait = False
        self._saved.expect(0.0, inf)
        if self._promised is not None:
            self._promised.forget_plan()
        bounded = longest_s < inf or (self._promised is not None and bool(decodes))
        if knows_late(order) and not order.trusts_step_times:
            return _safely(plan, len(decodes) * view.tokens_a_decode) if bounded else plan
        if not bounded:
            return self._short(view, plan, order)
        alone = shape_of_decodes(decodes, view.tokens_a_decode)
        alone_s = self._cost.step_s(alone)
        if alone_s > longest_s * (1 - _PROMPTS_SHARE):
            in_time = (
                set(order.on_time(_prompts(view, plan), view.now_s)) if knows_late(order) else frozenset()
            )
            decodes_s = longest_s * (1 - _PROMPTS_SHARE) if in_time or begun else longest_s
            if alone_s > decodes_s:
                return self._fewer(view, plan, order, in_time, (longest_s, decodes_s))
        return self._with_prompts(view, plan, order, alone, longest_s)

    def _fewer(
        self,
        view: StepView,
        plan: StepPlan,
        order: Order,
        in_time: Collection[Job],
        within_s: tuple[float, float],
    ) -> StepPlan:
        """Of the decodes those in a hurry, and as many others as there is time for; of newcomers those `in_time`.

        `within_s` are the longest step, and what of it the decodes may take. Those in a hurry may take all of it,
        unless they are fewer than the prompts in time that have room, which would be late.
        """
        longest_s, decodes_s = within_s
        decodes, prompts = split_decodes(plan.run)
        found = pausing(view, order, decodes, longest_s)
        # At least one decode: prompts in time may have no room, and then no job would run.
        least = 0 if found.hurried else 1
        least_s = self._cost.step_s(found.shape(least))
        if least_s > longest_s / self.share or (
            least_s > decodes_s and _with_room(view, in_time) > len(found.hurried)
        ):
            # No pause would help: such a target is not kept by starving the others, nor by more being late.
            return _safely(plan, len(decodes) * view.tokens_a_decode)
        going_on = max(
            least,
            last_short(len(found.others), lambda count: self._cost.step_s(found.shape(count)) > decodes_s),
        )
        plan.run = [*found.hurried, *found.others[:going_on], *prompts]
        plan.admit = [job for job in plan.admit if job in in_time][: view.seats_beside(plan.run)]
        return self._with_prompts(view, plan, order, found.shape(going_on), longest_s)

    def _with_prompts(
        self, view: StepView, plan: StepPlan, order: Order, alone: BatchShape, longest_s: float
    ) -> StepPlan:
        """The decodes of a plan, a step `alone`, and what there is time for of its prompts beside them."""
        prompts = _prompts(view, plan)
        if not prompts:
            self._saved.expect(self._cost.step_s(alone), longest_s)
            return plan
        planned = MixedStep(self._cost, alone, prompts, view.graphed_tokens)
        tokens = plan.token_budget - alone.num_tokens
        if longest_s < inf:
            tokens = self._prompt_tokens(view, plan, order, planned, longest_s)
        if self._promised is not None and alone.num_jobs and planned.decodes_s:
            tokens = self._promised.tokens(view, planned, max(0, tokens))
        self._saved.expect(planned.seconds(tokens), longest_s, alone_s=planned.decodes_s)
        if not tokens:  # decodes save up for them
            self._prompts_wait = True
            plan.run, plan.admit = split_decodes(plan.run)[0], ()
        plan.token_budget = min(plan.token_budget, alone.num_tokens + tokens)
        return plan

    def _prompt_tokens(
        self, view: StepView, plan: StepPlan, order: Order, planned: MixedStep, longest_s: float
    ) -> int:
        """Prompt tokens of this step: as many as keep to the longest step, or more that are waited for and were saved.

        The fewest keep to it if they do so by the whole target.
        """
        most_tokens = max(0, plan.token_budget - planned.decodes.num_tokens)
        if not self.saving:
            return planned.most_tokens(longest_s, most_tokens)
        kept = planned.seconds(GRAIN_TOKENS) <= longest_s / self.share
        tokens = planned.soonest(planned.most_tokens(longest_s, most_tokens)) if kept else 0
        wanted = min(most_tokens, _waited_for(view, order, planned.prompts)) if kept else most_tokens
        return tokens if wanted <= tokens else self._saved.afford(planned, tokens, wanted, longest_s)

    def _short(self, view: StepView, plan: StepPlan, order: Order) -> StepPlan:
        """A step that no target between tokens bounds: as many tokens as are worth it, and as first tokens need."""
        if not plan.admit and not (plan.run and plan.run[-1].prefilling):
            return plan  # there are no prompts
        decodes, begun = split_decodes(plan.run)
        alone = shape_of_decodes(decodes, view.tokens_a_decode)
        prompts = [*begun, *starting(view, plan)]
        planned = MixedStep(self._cost, alone, prompts, view.graphed_tokens)
        tokens = plan.token_budget
        if self.short_steps:
            num_behind = len(begun) + len(view.waiting) + len(view.swapped)
            tokens = tokens_worth_a_step(planned, plan.token_budget, num_behind)
        if tokens < plan.token_budget and knows_late(order):
            tokens = tokens_for_first_tokens(planned, order, view.now_s, plan.token_budget, tokens)
        plan.token_budget = min(plan.token_budget, tokens)
        return plan

    def next_change_s(self, view: StepView) -> float:
        """As `top-jobs`; with a target between tokens as long as steps keep it although they grow with every token.

        That is for half of what the steps looked ahead at take as predicted: those that take less than half keep it
        anyway. Not known while steps have no predicted time, or decodes save up for prompts.
        """
        if self._prompts_wait:
            return -inf
        longest_s = self._longest_s(view, view.residents)
        if longest_s == inf:
            return self._top.next_change_s(view)
        count = len(view.residents)
        contexts = sum(job.num_computed_tokens for job in view.residents)
        last_s = self._cost.step_s(decode_shape(count, contexts + _STEADY_STEPS * count))
        if not 0 < last_s <= longest_s:
            return -inf
        first_s = self._cost.step_s(decode_shape(count, contexts))
        return min(view.now_s + _STEADY_STEPS * first_s / 2, self._top.next_change_s(view))

    def _longest_s(self, view: StepView, decodes: Sequence[Job]) -> float:
        """What a step with these may take; inf where none has a target between tokens."""
        tightest_s = min([job.slo.tbt_s or inf for job in decodes], default=inf)
        return self.share * tightest_s * view.decoded_tokens

    def ranks_nobody(self, view: StepView) -> bool:
        """As `top-jobs`, which decides unless a job has a target between tokens."""
        return self._top.ranks_nobody(view)

    def observe(self, outcome: StepOutcome) -> None:
        """Follow what was saved."""
        if self._promised is not None:
            self._promised.observe(outcome)
        more = outcome.num_tokens > len(outcome.tokens)  # than decodes without drafts would have
        self._saved.observe(ran=bool(outcome.tokens), prompts=more and has_prompts(outcome.tokens))


def _prompts(view: StepView, plan: StepPlan) -> list[Job]:
    """The prompts of a plan that have begun, and newcomers that have a place."""
    return [*split_decodes(plan.run)[1], *plan.admit[: view.seats_beside(plan.run)]]


def _waited_for(view: StepView, order: Order, prompts: Sequence[Job]) -> int:
    """Tokens of those prompts that have a target for their first token and can meet it. O(prompts)."""
    if not knows_late(order):
        return 0
    in_time = order.on_time(prompts, view.now_s)
    return sum(left_tokens(job) for job in in_time if job.ttft_deadline_s is not None)


def _safely(plan: StepPlan, decode_tokens: int) -> StepPlan:
    """The plan with a budget that needs no predictions, for every decode and a little of prompts: none starves."""
    plan.token_budget = min(plan.token_budget, max(SAFE_BUDGET_TOKENS, decode_tokens + GRAIN_TOKENS))
    return plan


def _with_room(view: StepView, prompts: Iterable[Job]) -> int:
    """How many of these prompts there are blocks for now, those that lack the fewest first. O(prompts log)."""
    needed = sorted(view.blocks(job.num_tokens - job.num_computed_tokens) for job in prompts)
    return bisect_right(list(accumulate(needed)), view.free_blocks)
