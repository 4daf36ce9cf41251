"""Prompts first and whole; as many residents as memory will hold to the end of their answers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from math import ceil, inf

from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job
from headway.core.plan import StepPlan
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.batching.admission import candidates
from headway.policies.batching.prefill_first import prefills_or_decodes
from headway.policies.batching.step_tokens import check_step_tokens, high_step_tokens, longest_ttft_s
from headway.policies.protocols import LearnsNothing, Order
from headway.policies.recent_lengths import RecentLengths

_SHARES = {"mean": None, "p50": 0.5, "p90": 0.9}
"""What an answer is expected to be as long as: the mean of the last answers, or the length at a share of them."""
_MOST_WINDOW = 1_000_000
"""Answers long past say nothing of late ones."""
_FREE_SHARE = 0.10
"""Of all blocks must be free for a newcomer to start (Ascendra, section on the HP instances)."""


class Elastic(LearnsNothing):
    """A step prefills whole prompts or decodes; a newcomer starts while memory lasts for all that are resident.

    There must be room for a newcomer's tokens, for the answer expected of it, and for what each resident's answer is
    expected to bring yet. Answers are expected to be as long as the last `window` that finished, by their `statistic`
    (mean, p50 or p90), and never longer than their limit; none is expected before the first has finished. More than a
    tenth of all blocks must be free. The first job without room ends the list: strictly in rank order. In an empty
    engine the first may take all there is. `elastic=false` starts newcomers up to `width` residents instead, whatever
    memory there is. A step has at most `token_budget` tokens, by default as follows from targets and step times
    (`high_step_tokens`); a prompt longer than that runs alone, in chunks. An answer longer than expected may cost
    others their KV. O(residents) a step while jobs wait.
    Source: Ascendra (Ikram et al. 2025, arXiv:2504.20828), HP instances; spec 3.7.
    """

    swapped_first = True
    """As `prefill-first`: jobs that are swapped come back before any that waits starts."""

    def __init__(
        self,
        cost: CostModel | None = None,
        *,
        elastic: bool = True,
        width: int = 128,
        statistic: str = "mean",
        window: int = 1000,
        token_budget: int | None = None,
    ) -> None:
        check_step_tokens("token_budget", token_budget)
        if width < 1:
            raise ConfigError.of("width", width, "1 or more residents")
        if statistic not in _SHARES:
            raise ConfigError(f"statistic is {statistic!r}; accepted: {', '.join(_SHARES)}")
        if not 1 <= window <= _MOST_WINDOW:
            raise ConfigError(f"window is {window}; accepted: 1 to {_MOST_WINDOW:,} answers")
        self.elastic = elastic
        self.width = width
        self.token_budget = token_budget
        self._cost: CostModel = cost or UnknownCost()
        self._share = _SHARES[statistic]
        self._answers = RecentLengths(window)

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """A prefill step if the first waiting job may start, else one decode of every resident."""
        plan = prefills_or_decodes(view, order, leaving, self._newcomers)
        if plan.admit or any(job.prefilling for job in plan.run):  # a step of decodes serves them all
            plan.token_budget = self._budget(view, plan)
        return plan

    def _budget(self, view: StepView, plan: StepPlan) -> int:
        if self.token_budget is not None:
            return min(self.token_budget, view.max_tokens)
        return high_step_tokens(
            self._cost, longest_ttft_s(chain(view.residents, plan.admit)), view.max_tokens
        )

    def _newcomers(self, view: StepView, order: Order, leaving: Collection[Job]) -> Sequence[Job]:
        seats = view.seats if self.elastic else self.width - len(view.residents)
        first = candidates(view, order, leaving, seats=seats)
        if first and not view.residents and not view.admissible(first[0]):
            # A job that is not ready keeps no other out of an empty engine.
            first = [job for job in first if view.admissible(job)]
        return self._with_room(view, first) if self.elastic else first[: max(0, seats)]

    def _with_room(self, view: StepView, queued: Sequence[Job]) -> list[Job]:
        """The leading jobs that memory will hold to the end, beside the residents."""
        if not queued:
            return []
        free, expected_tokens = view.free_blocks, self.expected_tokens
        room = free - sum(_to_come_blocks(view, job, expected_tokens) for job in view.residents)
        found: list[Job] = []
        for job in queued:
            needed, to_come = view.blocks(job.num_tokens), _to_come_blocks(view, job, expected_tokens)
            alone = not found and not view.residents
            if not alone and (needed + to_come > room or free <= _FREE_SHARE * view.total_blocks):
                break
            found.append(job)
            free -= needed
            room -= needed + to_come
        return found

    @property
    def expected_tokens(self) -> float:
        """How long an answer is expected to be; 0 before the first has ended."""
        if not self._answers:
            return 0.0
        return self._answers.mean if self._share is None else self._answers.at(self._share)

    def next_change_s(self, view: StepView) -> float:
        """Not known while a waiting job could have a seat: what is expected of residents falls as they decode."""
        waits = bool(view.waiting or view.swapped)
        return -inf if waits and view.seats > 0 and self.elastic else inf

    def finished(self, job: Job) -> None:
        """An answer's length is known."""
        self._answers.add(job.num_output_tokens)


def _to_come_blocks(view: StepView, job: Job, expected_tokens: float) -> int:
    """Blocks for what a job is expected to bring yet, where an answer is expected to be so long."""
    tokens = min(expected_tokens, job.max_output_tokens) - job.num_output_tokens
    return view.blocks(ceil(tokens)) if tokens > 0 else 0
