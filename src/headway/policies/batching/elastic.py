"""Runs whole prompts first, with as many residents as memory can hold until their answers end."""

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
"""Expected length of an answer: the mean of the last answers, or the length at this share of them."""
_MOST_WINDOW = 1_000_000
"""Larger windows are pointless: very old answers say nothing about new ones."""
_FREE_SHARE = 0.10
"""Share of all blocks that must be free for a newcomer to start (Ascendra, section on the HP instances)."""


class Elastic(LearnsNothing):
    """Each step prefills whole prompts or decodes; a newcomer starts while memory lasts for all residents.

    Memory must hold the newcomer's tokens, its expected answer, and what every resident's answer is expected to add. An
    expected answer is as long as the last `window` finished ones by their `statistic` (mean, p50 or p90), but never
    longer than its limit; before the first answer has finished it is empty. More than a tenth of all blocks must be
    free. The first job without room ends the list, strictly in rank order. In an empty engine the first job may take
    everything. `elastic=false` instead starts newcomers up to `width` residents, whatever the memory. A step has at
    most `token_budget` tokens, by default derived from targets and step times (`high_step_tokens`); a longer prompt
    runs alone, in chunks. An answer that outgrows its expectation may cost others their KV. O(residents) a step while
    jobs wait. Source: Ascendra (Ikram et al. 2025, arXiv:2504.20828), HP instances; spec 3.7.
    """

    swapped_first = True
    """As in `prefill-first`, swapped jobs come back before any waiting job starts."""

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
        if plan.admit or any(job.prefilling for job in plan.run):  # a step of decodes serves all residents
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
            # A job that is not ready does not block the others in an empty engine.
            first = [job for job in first if view.admissible(job)]
        return self._with_room(view, first) if self.elastic else first[: max(0, seats)]

    def _with_room(self, view: StepView, queued: Sequence[Job]) -> list[Job]:
        """The leading jobs for which memory lasts until they end, beside the residents."""
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
        """Expected length of an answer in tokens; 0 before the first answer has ended."""
        if not self._answers:
            return 0.0
        return self._answers.mean if self._share is None else self._answers.at(self._share)

    def next_change_s(self, view: StepView) -> float:
        """Unknown while a waiting job could get a seat, since the residents' expected remainder shrinks as they
        decode.
        """
        waits = bool(view.waiting or view.swapped)
        return -inf if waits and view.seats > 0 and self.elastic else inf

    def finished(self, job: Job) -> None:
        """Learn an answer's length."""
        self._answers.add(job.num_output_tokens)


def _to_come_blocks(view: StepView, job: Job, expected_tokens: float) -> int:
    """Blocks that a job is expected to add if its whole answer has `expected_tokens`."""
    tokens = min(expected_tokens, job.max_output_tokens) - job.num_output_tokens
    return view.blocks(ceil(tokens)) if tokens > 0 else 0
