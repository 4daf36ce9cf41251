"""The most deserving jobs, in steps as long as those between tokens can bear."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import accumulate
from math import inf

from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job
from headway.core.plan import StepOutcome, StepPlan
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.batching.decode_first import split_decodes
from headway.policies.batching.first_tokens import tokens_for_first_tokens
from headway.policies.batching.prompts_by_rank import by_rank
from headway.policies.batching.short_steps import ShortSteps
from headway.policies.batching.step_shapes import (
    GRAIN_TOKENS,
    context_tokens,
    decode_shape,
    left_tokens,
    shape_of_decodes,
    with_prompt,
)
from headway.policies.batching.step_work import step_work
from headway.policies.batching.top_jobs import DEFAULT_HEADROOM, TopJobs
from headway.policies.order import Order, knows_late

SAFE_BUDGET_TOKENS = 512
"""A step's budget while predictions of its time are not to be trusted: Sarathi-Serve's."""
_HARDLY_LONGER = 1.2
"""Where even those break the target, as many more as make the step at most so many times as long: to a GPU a tile of a
few dozen is as good as one token."""
_PROMPTS_SHARE = 0.3
"""Of the longest step, kept for prompts in time from decodes that can wait."""
DEFAULT_MOST_DEARER = 0.05
"""So much more may prompts cost those who decode and wait for the sake of shorter steps."""
_STEADY_STEPS = 64
"""Steps that are looked ahead for whether those who decode stay within the target between tokens."""


class Paced:
    """`top-jobs`, but no step is predicted to last longer than the tightest target between tokens allows.

    The target of a job counts while it brings tokens, even of one that is late: somebody reads them. Prompts get what
    time is left beside the decodes, in rank order, begun or not, so a long one is cut into as many chunks as that
    takes, stalls nobody, and keeps no short one waiting. Where there is time for none, a few tokens of prompts go
    through all the same; if those break the target, as many as take hardly longer. Where the decodes alone would take
    too long, those pause that have no such target, or one at least twice as long that they are ahead of, the lowest
    ranked first, and nobody starts but who is in time; where no pause helps, nobody pauses. While prompts in time wait,
    seven tenths of that are too long: they get the rest, unless those in a hurry alone take more; and if those are
    fewer than the prompts with room, they may miss their pace, for the many would be late. `share` of the target is
    used: the rest is for what the prediction leaves out. Where predictions are wrong or no pause helps, a step with
    such a target has SAFE_BUDGET_TOKENS; while steps have no predicted time the engine's own budget holds.

    Where nobody who decodes has such a target, steps are as short as they may be at hardly more cost to those who
    decode and those who wait, at most `most_dearer` more than of any longer one (`ShortSteps`), and longer where first
    tokens would be late otherwise (`tokens_for_first_tokens`).

    As `top-jobs`, and O(running) with about ten predictions of a step's time where somebody has a target or there are
    prompts.
    Source: the idea of Sarathi-Serve (OSDI 2024) with the budget taken from the step-time model, step by step.
    """

    def __init__(
        self,
        cost: CostModel | None = None,
        *,
        headroom: float = DEFAULT_HEADROOM,
        share: float = 0.85,
        most_dearer: float = DEFAULT_MOST_DEARER,
    ) -> None:
        if not 0 < share <= 1:
            raise ConfigError(f"share is {share}; accepted: a share of the target above 0, at most 1")
        self.headroom = headroom
        self.share = share
        self._cost: CostModel = cost or UnknownCost()
        self._top = TopJobs(headroom=headroom)
        self._short = ShortSteps(self._cost, most_dearer)

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """The top jobs, prompts by rank, within the tokens that the tightest target leaves or that are worth a step."""
        return by_rank(view, self._in_time(view, order, leaving), order)

    def _in_time(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """The top jobs, and the budget; prompts that have begun still come before those that start."""
        plan = self._top.plan(view, order, leaving)
        decodes, begun = split_decodes(plan.run)
        decode_tokens = len(decodes) * view.tokens_a_decode
        longest_s = self._longest_s(view, decodes)
        if knows_late(order) and not order.trusts_step_times:
            return plan if longest_s == inf else _safely(plan, decode_tokens)
        if longest_s == inf:
            return _within(plan, self._short_tokens(view, plan, order))
        alone = shape_of_decodes(decodes, view.tokens_a_decode)
        prompts = [*begun, *plan.admit[: view.seats_beside(plan.run)]]
        alone_s = self._cost.step_s(alone)
        if alone_s > longest_s * (1 - _PROMPTS_SHARE):
            in_time = set(order.on_time(prompts, view.now_s)) if knows_late(order) else frozenset()
            decodes_s = longest_s * (1 - _PROMPTS_SHARE) if in_time else longest_s
            if alone_s > decodes_s:
                return self._fewer(view, plan, (longest_s, decodes_s), in_time, order)
        tokens = self._prompt_tokens(alone, prompts, plan.token_budget - decode_tokens, longest_s)
        return _within(plan, decode_tokens + tokens)

    def _short_tokens(self, view: StepView, plan: StepPlan, order: Order) -> int:
        """The tokens of a step that no target between tokens bounds: few, but first tokens are to come in time."""
        if not plan.admit and not (plan.run and plan.run[-1].prefilling):
            return plan.token_budget  # there are no prompts
        work = step_work(view, plan)
        tokens = self._short.most_tokens(work)
        if tokens >= plan.token_budget or not knows_late(order):
            return tokens
        return tokens_for_first_tokens(self._cost, order, view.now_s, work, tokens)

    def _fewer(
        self,
        view: StepView,
        plan: StepPlan,
        within_s: tuple[float, float],
        in_time: Collection[Job],
        order: Order,
    ) -> StepPlan:
        """Of the decodes those in a hurry, and as many others as there is time for; of newcomers those `in_time`.

        `within_s` are the longest step, and what of it the decodes may take.
        """
        longest_s, decodes_s = within_s
        decodes, prompts = split_decodes(plan.run)
        others = [
            job
            for job in order.rank(decodes, view.now_s)
            if job.slo.tbt_s is None or _is_ahead(job, longest_s, view, order)
        ]
        patient = set(others)
        hurried = [job for job in decodes if job not in patient]
        contexts = list(accumulate(map(context_tokens, others), initial=sum(map(context_tokens, hurried))))

        def beside(count: int) -> BatchShape:
            return decode_shape(len(hurried) + count, contexts[count], view.tokens_a_decode)

        def too_long(count: int) -> bool:
            return self._cost.step_s(beside(count)) > decodes_s

        least_s = self._cost.step_s(beside(0 if hurried else 1))
        if least_s > longest_s or (least_s > decodes_s and _with_room(view, in_time) > len(hurried)):
            # Nobody's pause would help: such a target is not kept by starving the others, nor by more being late.
            return _safely(plan, len(decodes) * view.tokens_a_decode)
        # Somebody decodes: prompts in time may have no room, and then nobody would run.
        kept = others[: max(0 if hurried else 1, _last_short(len(others), too_long))]
        plan.run = [*hurried, *kept, *prompts]
        plan.admit = [job for job in plan.admit if job in in_time][: view.seats_beside(plan.run)]
        prompts = [*prompts, *plan.admit]
        alone = beside(len(kept))
        most_tokens = plan.token_budget - alone.num_tokens
        return _within(plan, alone.num_tokens + self._prompt_tokens(alone, prompts, most_tokens, longest_s))

    def _prompt_tokens(
        self, alone: BatchShape, prompts: Sequence[Job], most_tokens: int, longest_s: float
    ) -> int:
        """Prompt tokens, in order and at most so many, beside which a step is predicted to last no longer.

        The fewest always; where they break even the whole target, as many as take hardly longer.
        """
        if prompts:
            fewest = _with_prompt(alone, prompts[0], min(GRAIN_TOKENS, left_tokens(prompts[0])))
            fewest_s = self._cost.step_s(fewest)
            lost = fewest_s > longest_s / self.share
            longest_s = max(longest_s, fewest_s * _HARDLY_LONGER if lost else fewest_s)
        step, granted = alone, 0
        for job in prompts:
            tokens = min(left_tokens(job), most_tokens - granted)
            if tokens <= 0:
                break
            longer = _with_prompt(step, job, tokens)
            if self._cost.step_s(longer) > longest_s:
                return max(GRAIN_TOKENS, self._cut(step, job, granted, tokens, longest_s))
            step, granted = longer, granted + tokens
        return most_tokens

    def _cut(self, step: BatchShape, job: Job, granted: int, tokens: int, longest_s: float) -> int:
        """All prompt tokens, where the next `tokens` of one prompt are too much beside those `granted`."""
        whole = granted // GRAIN_TOKENS

        def too_long(grains: int) -> bool:
            chunk = (whole + grains) * GRAIN_TOKENS - granted
            return self._cost.step_s(_with_prompt(step, job, chunk)) > longest_s

        grains = _last_short(-(-(granted + tokens) // GRAIN_TOKENS) - whole, too_long)
        return max(granted, (whole + grains) * GRAIN_TOKENS)

    def next_change_s(self, view: StepView) -> float:
        """As `top-jobs`; with a target between tokens as long as steps keep it although they grow with every token.

        That is for half of what the steps looked ahead at take as predicted: those that take less than half keep it
        anyway. Not known while steps have no predicted time.
        """
        longest_s = self._longest_s(view, view.residents)
        if longest_s == inf:
            return self._top.next_change_s(view)
        count = len(view.residents)
        contexts = sum(map(context_tokens, view.residents))
        last_s = self._cost.step_s(decode_shape(count, contexts + _STEADY_STEPS * count))
        if not 0 < last_s <= longest_s:
            return -inf
        first_s = self._cost.step_s(decode_shape(count, contexts))
        return min(view.now_s + _STEADY_STEPS * first_s / 2, self._top.next_change_s(view))

    def _longest_s(self, view: StepView, decodes: Sequence[Job]) -> float:
        """What a step with these may take; inf where nobody has a target between tokens."""
        tightest_s = min([job.slo.tbt_s or inf for job in decodes], default=inf)
        return self.share * tightest_s * view.decoded_tokens

    def ranks_nobody(self, view: StepView) -> bool:
        """As `top-jobs`, which decides unless somebody has a target between tokens."""
        return self._top.ranks_nobody(view)

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn."""


def _within(plan: StepPlan, tokens: int) -> StepPlan:
    """The plan, now of a step of at most so many tokens."""
    plan.token_budget = min(plan.token_budget, tokens)
    return plan


def _safely(plan: StepPlan, decode_tokens: int) -> StepPlan:
    """The plan with a budget that needs no predictions, for every decode and a little of prompts: none starves."""
    return _within(plan, max(SAFE_BUDGET_TOKENS, decode_tokens + GRAIN_TOKENS))


def _with_room(view: StepView, prompts: Iterable[Job]) -> int:
    """How many of these prompts there are blocks for now, those that lack the fewest first. O(prompts log)."""
    needed = sorted(view.blocks(job.num_tokens - job.num_computed_tokens) for job in prompts)
    return bisect_right(list(accumulate(needed)), view.free_blocks)


def _is_ahead(job: Job, longest_s: float, view: StepView, order: Order) -> bool:
    """Whether a decode's own pace is so much slower that it may sit a step out."""
    own_s = (job.slo.tbt_s or inf) * view.decoded_tokens
    return knows_late(order) and own_s >= 2 * longest_s and order.latest_start_s(job) > view.now_s + own_s


def _with_prompt(step: BatchShape, job: Job, tokens: int) -> BatchShape:
    return with_prompt(step, tokens, job.num_found_tokens)


def _last_short(most: int, too_long: Callable[[int], bool]) -> int:
    """The largest number up to `most` that is not too long, 0 if none; the more, the longer. O(log most) asked."""
    if most <= 0 or not too_long(most):
        return max(0, most)
    return max(0, bisect_left(range(most), True, key=too_long) - 1)
