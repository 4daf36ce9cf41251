"""Limits what jobs that can wait take beside others: seats, and prompt tokens of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from headway.core.job import Job
from headway.core.plan import StepPlan
from headway.core.view import StepView
from headway.policies.batching.step_shapes import left_tokens, split_decodes
from headway.policies.protocols import KnowsLate

_NEWEST_SHARE = 1 / 128
"""Weight of the newest step in the mean number of others: a lull of a second or so leaves no room for a batch."""
PROMPT_TOKENS = 256
"""Prompt tokens of a step with others, from which on jobs that can wait have none. GPUs compute about as many in the
time in which decodes read the weights.
"""


class SpareRoom:
    """How many jobs that can wait may start beside others, and how many tokens their prompts have.

    Others are served first, yet wait longer beside jobs that can wait: for the step in flight, for a seat that has to
    be given up first, and while dropped KV is computed again. Others also come in bursts. So of n seats,
    m (1 + (m / n)^2) are kept for them, where m is their mean number, or their present number if that is more: hardly
    more than they take while they are few, and all seats once they take two thirds. A job that runs keeps its seat
    until it has to make room.

    In a step with others, prompts of jobs that can wait come last, and get what other prompts leave of PROMPT_TOKENS.
    So a newcomer does not wait for a long step, and answers slow down less.

    Both were tuned in simulation: the 46 M model on two cores, Qwen3-8B on an H100 (docs/notebook.md). O(residents) a
    step while a job can wait, else O(1).
    """

    def __init__(self) -> None:
        self._mean = 0.0
        self._now = 0

    def limit(self, view: StepView, plan: StepPlan, order: KnowsLate) -> StepPlan:
        """The plan without the newcomers and prompt tokens for which others leave no room."""
        patient = order.that_can_wait(chain(view.residents, plan.admit), view.now_s)
        self._now = len(view.residents)
        if not patient:
            return plan
        resident = sum(job in patient for job in view.residents)
        starting = [job for job in plan.admit[: view.seats_beside(plan.run)] if job not in patient]
        self._now += len(starting) - resident
        newcomers = [job for job in plan.admit if job in patient]
        refused = set(newcomers[max(0, self._seats(view.max_run) - resident) :])
        if refused:
            plan.admit = [job for job in plan.admit if job not in refused]
        if not starting and all(job in patient for job in plan.run):
            return plan
        begun = split_decodes(plan.run)[1]
        first = [*(job for job in begun if job not in patient), *starting]
        last = [job for job in (*begun, *plan.admit) if job in patient]
        return _with_tokens(plan, last, PROMPT_TOKENS - sum(map(left_tokens, first))) if last else plan

    def _seats(self, seats: int) -> int:
        """How many of the seats jobs that can wait may have."""
        others = max(self._now, self._mean)
        return seats - round(others * (1 + (others / seats) ** 2))

    def observe(self, *, ran: bool) -> None:
        """The planned step is done; nothing is learned unless some job `ran`."""
        if ran:
            self._mean += (self._now - self._mean) * _NEWEST_SHARE


def _with_tokens(plan: StepPlan, prompts: Sequence[Job], tokens: int) -> StepPlan:
    """The plan in which these prompts have this many tokens, in turn; those that get none sit the step out."""
    caps, out = dict(plan.chunk_cap), set[Job]()
    for job in prompts:
        granted = min(left_tokens(job), caps.get(job, tokens), tokens)
        if granted <= 0:
            out.add(job)
        elif granted < left_tokens(job):
            caps[job] = granted
        tokens -= max(0, granted)
    return replace(
        plan,
        run=[job for job in plan.run if job not in out],
        admit=[job for job in plan.admit if job not in out],
        chunk_cap=caps,
    )
