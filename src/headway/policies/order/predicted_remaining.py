"""Least predicted work first, within a bounded time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf, log

from headway.core.cost import CostModel
from headway.core.job import Job
from headway.core.kept_programs import GONE_S
from headway.core.plan import StepOutcome
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.order.keyed import KeyedOrder
from headway.policies.order.remaining_work import RemainingWork
from headway.policies.order.sorted_index import Key

DEFAULT_TAIL = 0.5
_GIVEN_WAY, _MOST_TIMES = 2.0, 20.0
_ARRIVALS = 64
"""Whose backlogs are averaged: a burst counts soon, one odd job hardly."""
_ASSUMED_BACKLOG_S = 1.0
"""Until the first step."""
_CHANGED = 1.5
"""All jobs are ranked anew once the average is so many times what it was, or as little."""
_LEAST_WORK_S = 0.001
"""Less work counts as this much: a token of an answer in a wide batch."""


def give_way(tail: float) -> float:
    """The T of `PredictedRemaining` in mean backlogs: 40 at `tail` 0, 2 at 0.5, 0.1 at 1.

    A job gives way to one with 1 / e of its work that arrives up to T later. Raises ConfigError unless `tail` is 0 to
    1.
    """
    if not 0 <= tail <= 1:
        raise ConfigError.of("tail", tail, "0 (least mean completion time) to 1 (shortest tail)")
    return float(_GIVEN_WAY * _MOST_TIMES ** (1 - 2 * tail))


class PredictedRemaining(KeyedOrder):
    """Smallest arrival + T x ln(remaining work) first: shorter jobs move up by a bounded time.

    T is `give_way(tail)` times the backlog: the work of all jobs at the step at which one arrives, averaged over the
    last _ARRIVALS or so. First come, first served would have taken that long. So T follows from machine, jobs and
    load: where all of these happen twice as fast, T is half as long, and the order is the same. A job gives way to one
    of half its work that arrives up to 0.7 T later, and to one of a tenth that arrives up to 2.3 T later. With a small
    T the order is nearly first come, first served; with a large one, shortest work first. The current time and the unit
    of work are the same for all jobs and cancel out, so keys do not drift.

    The bound: a waiting job of work w is passed only by jobs that arrived up to T ln(w / _LEAST_WORK_S) later. These
    are finitely many, each of finite work. The key of a waiting job changes only with T and with the basis of estimates
    (`RemainingWork`). The key of a running job also grows if its answer outgrows its prediction, which its limit
    bounds, or if its KV is dropped, by the prefill to be done again.

    Costs: as `KeyedOrder`. A key is recomputed at a few points of an answer's life (`RemainingWork` has the error), and
    only if its rank is asked for. While plans rank all running jobs, that happens beside the step that advances the
    job, so that the next plan finds it done. Once T is 1.5 times what it was, or as little, all keys are recomputed, 64
    a step. Source: the boost of Yu and Scully (2024, Strongly tail-optimal scheduling in the light-tailed M/G/1), used
    for LLMs by UniBoost (Li et al., ICML 2026), in its limit for work that is short compared with T. Their T is the
    reciprocal of the rate at which the tail of the backlog decays: for an exponential tail, the mean backlog.
    """

    trusts_predictions = True
    _estimator: type[RemainingWork] = RemainingWork

    def __init__(
        self,
        cost: CostModel | None = None,
        *,
        tail: float = DEFAULT_TAIL,
        memory: bool = False,
    ) -> None:
        super().__init__()
        self._give_way = give_way(tail)
        self._came = 0
        self._arrivals = 0
        self._backlog_s = 0.0
        self.give_way_s = self._give_way * _ASSUMED_BACKLOG_S
        """T: by how much later a job may arrive and pass one of e times its work."""
        self.memory = memory
        self.work = self._estimator(cost, memory=memory)
        self._num_ranked = 0
        self.renewed: Sequence[Job] = ()
        """The jobs whose work was estimated anew beside the last step."""

    def key(self, job: Job) -> Key:
        """(arrival + T x ln(work), arrival, id), with the work estimated now.

        A turn of an agent program counts as if it had come with the first, but at most GONE_S earlier than it came.
        """
        came_s = job.arrival_s
        if job.program_began_s is not None:
            came_s = max(job.program_began_s, came_s - GONE_S)
        work_s = max(_LEAST_WORK_S, self.work.estimate(job))
        return (came_s + self.give_way_s * log(work_s), job.arrival_s, job.id)

    def add(self, job: Job) -> None:
        """Index a job that starts to wait. A new one counts for the backlog."""
        if job not in self:
            self._came += 1
        super().add(job)

    def end(self, job: Job) -> None:
        """Forget a job."""
        super().end(job)
        self.work.forget(job)
        if job in self.renewed:
            self.renewed = [one for one in self.renewed if one is not job]

    def finished(self, job: Job) -> None:
        """Learn the usual length of answers without a prediction."""
        self.work.learn(job)

    def touch(self, job: Job) -> None:
        """Recompute a job's key: at once if it waits, else when its rank is asked for."""
        if self._index.holds(job, self._keys[job]):
            super().touch(job)
        else:
            self.work.doubt(job)

    def renew(self, jobs: Iterable[Job], coming_tokens: int = 0) -> list[Job]:
        """Recompute the keys of `jobs` that are outdated, or will be after `coming_tokens` more; return these jobs.

        O(jobs), without calls for the others.
        """
        outdated = self.work.outdated(jobs, coming_tokens)
        for job in outdated:
            super().touch(job)
        return outdated

    def rank(self, jobs: Sequence[Job], now_s: float) -> Sequence[Job]:
        """Sort `jobs` by key."""
        self._num_ranked = max(self._num_ranked, len(jobs))
        self.renew(jobs)
        return self.ranked(jobs)

    def observe(self, outcome: StepOutcome) -> None:
        """Recompute, beside the step, the keys that its tokens outdate, if the plan ranked as many jobs as it
        serves.
        """
        self.work.observe(outcome)
        if self._came:
            self._follow_backlog()
        self.renewed = self.work.next_in_doubt()
        for job in self.renewed:
            self.touch(job)
        num_ranked, self._num_ranked = self._num_ranked, 0
        if num_ranked >= len(outcome.tokens):
            self.renew(outcome.tokens, coming_tokens=1)

    def _follow_backlog(self) -> None:
        """Average the backlog at the arrivals since the last step; recompute all keys if T changed much."""
        self._arrivals = max(self._came, min(self._arrivals + self._came, _ARRIVALS))
        self._backlog_s += (self.work.total_s - self._backlog_s) * self._came / self._arrivals
        self._came = 0
        give_way_s = self._give_way * self._backlog_s
        if max(give_way_s, self.give_way_s) > _CHANGED * min(give_way_s, self.give_way_s):
            self.give_way_s = give_way_s
            self.work.doubt_all()

    def next_change_s(self, view: StepView) -> float:
        """Unknown: work falls as answers grow, and this order cannot tell how fast they grow."""
        return -inf if len(self._keys) > 1 else inf
