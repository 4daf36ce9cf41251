"""Least predicted work first, by a bounded time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf, log

from headway.core.cost import CostModel
from headway.core.job import Job
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
    """How far a job gives way to one of 1 / e of its work, in mean backlogs: 40 at `tail` 0, 2 at 0.5, 0.1 at 1.

    ConfigError unless `tail` is 0 to 1.
    """
    if not 0 <= tail <= 1:
        raise ConfigError.of("tail", tail, "0 (least mean completion time) to 1 (shortest tail)")
    return float(_GIVEN_WAY * _MOST_TIMES ** (1 - 2 * tail))


class PredictedRemaining(KeyedOrder):
    """Smallest arrival + T x ln(remaining work) first: shorter jobs are moved up by a bounded time.

    T is `give_way(tail)` times the backlog: the work of all jobs at the step at which one arrives, in the mean of the
    last _ARRIVALS or so. That is how long first come, first served would have made them take. So T follows from
    machine, jobs and load: where all of these happen twice as fast, T is half as long, and the order is the same. A job
    gives way to one of half its work that comes up to 0.7 T later, to one of a tenth that comes up to 2.3 T later. With
    a small T the order is nearly first come, first served; with a large one, shortest work first. The time now and the
    unit of work are the same for all jobs and cancel out, so keys do not drift.

    The bound: a waiting job of work w is passed only by jobs that arrived up to T ln(w / _LEAST_WORK_S) later. These
    are finitely many, each of finite work. The key of a waiting job changes only with T and with what estimates rest
    on (`RemainingWork`). The key of a running job grows in two cases more: its answer outgrew its prediction, which its
    limit bounds; or its KV was dropped, by the prefill to be done again.

    Costs: as `KeyedOrder`. An answer's key is taken anew at a few points of its life (`RemainingWork`, with the error),
    and only if its rank is asked for; while plans rank all that run, beside the step that brings it on, so that the
    next plan finds it done. All keys are taken anew, 64 a step, once T is 1.5 times what it was, or as little.
    Source: the boost of Yu and Scully (2024, Strongly tail-optimal scheduling in the light-tailed M/G/1), used for LLMs
    by UniBoost (Li et al., ICML 2026), in its limit for work that is short beside T. Their T is the reciprocal of the
    rate at which the tail of the backlog decays, so for an exponential tail the mean backlog.
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
        """Whose work was estimated anew beside the last step."""

    def key(self, job: Job) -> Key:
        """(arrival + T x ln(work), arrival, id), with the work estimated now."""
        work_s = max(_LEAST_WORK_S, self.work.estimate(job))
        return (job.arrival_s + self.give_way_s * log(work_s), job.arrival_s, job.id)

    def add(self, job: Job) -> None:
        """Index a job that starts to wait, and count it, if it is new, for the backlog."""
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
        """Learn how long answers without a prediction are."""
        self.work.learn(job)

    def touch(self, job: Job) -> None:
        """Take a job's key anew: at once if it waits, else when its rank is asked for."""
        if self._index.holds(job, self._keys[job]):
            super().touch(job)
        else:
            self.work.doubt(job)

    def renew(self, jobs: Iterable[Job], coming_tokens: int = 0) -> list[Job]:
        """Take anew, and return, those of `jobs` whose keys are outdated, or will be with so many tokens more.

        O(jobs), without calls for the others.
        """
        outdated = self.work.outdated(jobs, coming_tokens)
        for job in outdated:
            super().touch(job)
        return outdated

    def rank(self, jobs: Sequence[Job], now_s: float) -> Sequence[Job]:
        """`jobs` in key order."""
        self._num_ranked = max(self._num_ranked, len(jobs))
        self.renew(jobs)
        return self.ranked(jobs)

    def observe(self, outcome: StepOutcome) -> None:
        """Take anew, beside the step, the keys that its tokens outdate, if the plan ranked as many as it serves."""
        self.work.observe(outcome)
        if self._came:
            self._follow_backlog()
        self.renewed = self.work.next_in_doubt()
        for job in self.renewed:
            self.touch(job)
        num_ranked, self._num_ranked = self._num_ranked, 0
        if num_ranked >= len(outcome.tokens):
            self.renew([job for job in outcome.tokens if job in self], coming_tokens=1)

    def _follow_backlog(self) -> None:
        """Average the backlog that the jobs found which came since the last step; rank all anew if T changed much."""
        self._arrivals = max(self._came, min(self._arrivals + self._came, _ARRIVALS))
        self._backlog_s += (self.work.total_s - self._backlog_s) * self._came / self._arrivals
        self._came = 0
        give_way_s = self._give_way * self._backlog_s
        if max(give_way_s, self.give_way_s) > _CHANGED * min(give_way_s, self.give_way_s):
            self.give_way_s = give_way_s
            self.work.doubt_all()

    def work_ahead_s(self, jobs: Sequence[Job]) -> list[float]:
        """Seconds of work of those that rank before each of `jobs` among them: when it can be served. O(n log n)."""
        self.renew(jobs)
        keys, ahead_s = self._keys, 0.0
        found: dict[Job, float] = {}
        for job in sorted(jobs, key=keys.__getitem__):
            found[job] = ahead_s
            ahead_s += self.work.of(job)
        return [found[job] for job in jobs]

    def next_change_s(self, view: StepView) -> float:
        """Not known: work falls as answers grow, and how fast they grow is not this order's to say."""
        return -inf if len(self._keys) > 1 else inf
