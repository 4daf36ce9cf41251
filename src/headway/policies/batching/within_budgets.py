"""Decodes first, then prompts by rank, within what a step may take of time, memory and tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf

from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job
from headway.core.plan import StepOutcome, StepPlan
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.batching.candidates import startable
from headway.policies.batching.step_budgets import StepBudgets, begin_step
from headway.policies.order import Order

TOKEN_BUDGET = 2048
"""Tokens of an LP instance's step, which the paper does not give: of 256 to 2,048 the one with the most goodput in
simulation (adr/0022). Served, simulated and studied alike."""
MOST_SCANNED = 64
"""Waiting jobs looked at in a step, the first in rank; those behind them wait for the next."""
_LEAST_SHARE = 8
"""No prompt gets less than an eighth of the token budget, unless that is all it lacks: crumbs hold memory for long."""


class WithinBudgets:
    """Every resident that decodes runs; prompts, begun or waiting, get chunks in rank order while budgets last.

    Time: no chunk may make the predicted step longer than the tightest TBT target of those who decode, nor, where
    somebody decodes, than the job's own; it is halved until it fits, down to an eighth of `token_budget`. With
    nobody decoding, without targets, or while steps have no predicted time, time is no limit. Memory: a waiting job
    starts only if all its tokens and a block more fit beside a block for each that decodes and the unfinished rest
    of every prompt that has begun, as vLLM wants room for a whole sequence before it starts. Tokens: `token_budget`
    a step. `width`: most residents. What does not fit is passed over; the scan ends when tokens or memory are
    used up, or after 64 waiting jobs. Residents in mid-prompt that get nothing are paused.

    Nobody is left lying.
    (1) The prompt that has been under way longest gets an eighth of the budget, or what is left of it, in every step,
    before all others and whatever the time; so k prompts of at most p tokens that hold memory are computed within
    k x ceil(8 p / token_budget) steps in which those who decode leave that many tokens.
    (2) So an engine always has something to compute: somebody who decodes, or the oldest prompt, or, if nobody is
    resident, the first that is ready and fits.
    (3) A job that has waited longer than `patience_s` is passed over no more, but for one that ranks higher: its own
    TBT target no longer counts, and while it lacks time or memory nobody that ranks lower starts. Then those
    resident end one by one, and at last it fits, or is alone.

    O(residents + m log m) with m prompts looked at, and a prediction for each chunk tried.
    Source: Ascendra Algorithm 1 (Ikram et al. 2025, arXiv:2504.20828), LP instances; spec 3.4.
    """

    def __init__(
        self,
        cost: CostModel | None = None,
        *,
        token_budget: int = TOKEN_BUDGET,
        width: int = 128,
        patience_s: float = 10.0,
    ) -> None:
        if token_budget < 1:
            raise ConfigError(f"token_budget is {token_budget}; accepted: 1 or more tokens a step")
        if width < 1:
            raise ConfigError(f"width is {width}; accepted: 1 or more residents")
        if not patience_s >= 0:
            raise ConfigError(f"patience_s is {patience_s}; accepted: 0 or more seconds")
        self.token_budget = token_budget
        self.width = width
        self.patience_s = patience_s
        self._cost: CostModel = cost or UnknownCost()

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """All that decode, the oldest prompt, then prompts as budgets allow."""
        budget = min(self.token_budget, view.max_tokens)
        waiting = self._waiting(view, order, leaving)
        step = begin_step(view, self._cost, budget, least_tokens=max(1, budget // _LEAST_SHARE))
        if not step.prompts and not waiting:
            return StepPlan(run=order.rank(view.residents, view.now_s), token_budget=budget)
        step.seats = self._seats(view)
        step.serve_oldest()
        begun = set(step.prompts)
        starting: list[Job] = []
        for job in order.rank([*step.prompts, *waiting], view.now_s):
            if step.used_up:
                break
            if job in begun:
                step.serve(job)
            elif step.seats > 0 and self._starts(view, step, job):
                starting.append(job)
        # The oldest was granted first, so it stands before the other prompts and loses its KV after them.
        served = [job for job in step.granted if job in begun]
        return StepPlan(
            run=[*order.rank(step.decodes, view.now_s), *served],
            admit=starting,
            token_budget=budget,
            chunk_cap=step.caps(),
        )

    def _seats(self, view: StepView) -> int:
        return min(view.seats, self.width - len(view.residents))

    def _waiting(self, view: StepView, order: Order, leaving: Collection[Job]) -> Sequence[Job]:
        """The first MOST_SCANNED that wait, if there is a seat."""
        if self._seats(view) <= 0 or not (view.waiting or view.swapped):
            return ()
        return startable(view, order, leaving, MOST_SCANNED)

    def _starts(self, view: StepView, step: StepBudgets, job: Job) -> bool:
        """Whether a waiting job starts in this step; one that has waited too long to be passed over ends starting."""
        impatient = view.now_s - job.arrival_s > self.patience_s
        chunk = step.chunk_to_start(job, heeds_own_target=not impatient)
        if chunk and view.admissible(job):
            step.start(job, chunk)
            return True
        # Memory may also be short by the engine's own count: a watermark, for one.
        if impatient and (not chunk or view.ready(job)):
            step.seats = 0
        return False

    def next_change_s(self, view: StepView) -> float:
        """Not known while somebody waits who could have a seat: what steps take changes with every token."""
        waits = bool(view.waiting or view.swapped)
        return -inf if waits and self._seats(view) > 0 else inf

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn: what steps take is the cost model's."""
