"""Runs the most deserving jobs in steps as long as the targets between tokens allow."""

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
from headway.policies.batching.spare_room import SpareRoom
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
    """Decodes in a hurry, which continue, and the others by rank, of which the last may pause.

    A decode is in a hurry if it has a target between tokens, unless that target is at least twice the longest step and
    the job is ahead of its pace. `contexts` are the context tokens of the hurried decodes with the first 0, 1, 2 ... of
    the others.
    """

    hurried: Sequence[Job]
    others: Sequence[Job]
    contexts: Sequence[int]
    tokens_a_decode: int

    def shape(self, count: int) -> BatchShape:
        """The step of the hurried decodes and the first `count` others."""
        return decode_shape(len(self.hurried) + count, self.contexts[count], self.tokens_a_decode)


def pausing(view: StepView, order: Order, decodes: Sequence[Job], longest_s: float) -> Pausing:
    """Which decodes may pause in a step of `longest_s`. O(decodes), and a ranking of them."""
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
    """Whether a decode's target is so much slower than the step that it may sit a step out."""
    own_s = (job.slo.tbt_s or inf) * view.decoded_tokens
    return knows_late(order) and own_s >= 2 * longest_s and order.latest_start_s(job) > view.now_s + own_s


_MOST_NEWCOMERS = 4
"""Newcomers in a step for which prompts in progress make way; checking whether one can start costs a lookup."""


def in_turn(view: StepView, plan: StepPlan, order: Order) -> StepPlan:
    """The plan with prompt tokens given by rank, after prompts whose first token is due (`due_first_tokens`).

    A step serves prompts in progress first. Those that rank after a newcomer are limited to what it leaves, and pause
    if that is nothing. Only newcomers that can start together in this step count. Cached tokens are no work.
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
    """Prompts whose first token is due, among those in progress and those with room, in order."""
    if not knows_late(order) or not (begun or plan.admit):
        return {}
    return dict.fromkeys(order.due_first_tokens(_with_room_now(view, plan, begun), view.now_s))


def _with_room_now(view: StepView, plan: StepPlan, begun: Sequence[Job]) -> Iterator[Job]:
    """The prompts of a step. Newcomers are looked up only when they are consumed."""
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
"""A step's token budget while predicted step times are not trusted: that of Sarathi-Serve."""
_PROMPTS_SHARE = 0.3
"""Share of the longest step that decodes which can wait leave to prompts that are in time or in progress."""
_STEADY_STEPS = 64
"""Steps to look ahead when checking that decodes stay within the target between tokens."""


class Paced:
    """`top-jobs` in steps as long as the tightest target between tokens allows, or as is efficient without one.

    Only `share` of a target is used; the rest covers what predictions leave out. The target of a late job counts too,
    since a client reads along. Prompts get the time that the decodes leave, by rank, whether in progress or new. A long
    prompt is thus cut into chunks: it stalls no stream and delays no short prompt. With `saving`, decodes save time for
    prompts if they leave none, or if fewer but longer chunks finish sooner (`SavedTime`); streams keep their mean pace.
    If the decodes alone would take too long, some pause (`Pausing`). Jobs that can wait get what others leave
    (`SpareRoom`).

    Without such a target, and with `short_steps`, a step has the tokens that minimise total delay
    (`tokens_worth_a_step`), and more if first tokens would be late otherwise (`tokens_for_first_tokens`). With a
    `decode_share` decodes get that share of the time while prompts are computed: the mean step takes as long as the
    decodes alone, divided by the share. A target between tokens may leave prompts less.

    If predictions are wrong, or no pause helps, a step with a target has SAFE_BUDGET_TOKENS; while steps have no
    predicted time, the engine's own budget. Costs: those of `top-jobs`, O(running), and some twenty predictions of a
    step's time if there are targets or prompts. Source: the idea of Sarathi-Serve (OSDI 2024), with the budget computed
    for each step from the step-time model.
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
        self._spare = SpareRoom()
        self._prompts_wait = False

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """Plan the top jobs, prompts by rank, within the tokens that the tightest target leaves or that are
        efficient.
        """
        plan = in_turn(view, self._paced(view, order, leaving), order)
        return self._spare.limit(view, plan, order) if knows_late(order) else plan

    def _paced(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """The top jobs and their budget; prompts in progress still come before those that start."""
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
        """The plan reduced to the hurried decodes, as many others as time allows, and the newcomers `in_time`.

        `within_s` has the longest step, and the part of it for decodes. Hurried decodes may use all of the step, unless
        they are fewer than the prompts that are in time and have room: these would be late.
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
            # A pause would not help: the target can be kept neither by starving others nor by making more of them late.
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
        """The plan's decodes, a step `alone`, with as many of its prompts beside them as time allows."""
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
        if not tokens:  # decodes save time for them
            self._prompts_wait = True
            plan.run, plan.admit = split_decodes(plan.run)[0], ()
        plan.token_budget = min(plan.token_budget, alone.num_tokens + tokens)
        return plan

    def _prompt_tokens(
        self, view: StepView, plan: StepPlan, order: Order, planned: MixedStep, longest_s: float
    ) -> int:
        """Prompt tokens of this step: as many as keep to the longest step, or more that were saved for.

        At least the minimum, if the step with it keeps the whole target.
        """
        most_tokens = max(0, plan.token_budget - planned.decodes.num_tokens)
        if not self.saving:
            return planned.most_tokens(longest_s, most_tokens)
        kept = planned.seconds(GRAIN_TOKENS) <= longest_s / self.share
        tokens = planned.soonest(planned.most_tokens(longest_s, most_tokens)) if kept else 0
        wanted = min(most_tokens, _waited_for(view, order, planned.prompts)) if kept else most_tokens
        return tokens if wanted <= tokens else self._saved.afford(planned, tokens, wanted, longest_s)

    def _short(self, view: StepView, plan: StepPlan, order: Order) -> StepPlan:
        """A step without a target between tokens: as many tokens as are efficient, and as first tokens need."""
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
        """As `top-jobs`; with a target between tokens, half of the predicted time of the next steps if the last keeps
        it.

        If steps are more than twice as fast as predicted, they keep the target anyway. Unknown while steps have no
        predicted time, or while decodes save time for prompts.
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
        """The longest allowed step with these decodes; inf if none has a target between tokens."""
        tightest_s = min([job.slo.tbt_s or inf for job in decodes], default=inf)
        return self.share * tightest_s * view.decoded_tokens

    def ranks_nobody(self, view: StepView) -> bool:
        """As `top-jobs`, which decides unless a job has a target between tokens."""
        return self._top.ranks_nobody(view)

    def observe(self, outcome: StepOutcome) -> None:
        """Follow the saved time, and the number of jobs that cannot wait."""
        if self._promised is not None:
            self._promised.observe(outcome)
        self._spare.observe(ran=bool(outcome.tokens))
        more = outcome.num_tokens > len(outcome.tokens)  # more tokens than decodes without drafts would have
        self._saved.observe(ran=bool(outcome.tokens), prompts=more and has_prompts(outcome.tokens))


def _prompts(view: StepView, plan: StepPlan) -> list[Job]:
    """The plan's prompts: those in progress, and newcomers that have a seat."""
    return [*split_decodes(plan.run)[1], *plan.admit[: view.seats_beside(plan.run)]]


def _waited_for(view: StepView, order: Order, prompts: Sequence[Job]) -> int:
    """Tokens of those prompts that have a target for their first token and can meet it. O(prompts)."""
    if not knows_late(order):
        return 0
    in_time = order.on_time(prompts, view.now_s)
    return sum(left_tokens(job) for job in in_time if job.ttft_deadline_s is not None)


def _safely(plan: StepPlan, decode_tokens: int) -> StepPlan:
    """The plan with a budget that needs no predictions, for every decode and a few prompt tokens: nothing starves."""
    plan.token_budget = min(plan.token_budget, max(SAFE_BUDGET_TOKENS, decode_tokens + GRAIN_TOKENS))
    return plan


def _with_room(view: StepView, prompts: Iterable[Job]) -> int:
    """How many of these prompts have blocks now, counting those first that lack the fewest. O(prompts log)."""
    needed = sorted(view.blocks(job.num_tokens - job.num_computed_tokens) for job in prompts)
    return bisect_right(list(accumulate(needed)), view.free_blocks)
