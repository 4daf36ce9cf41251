"""Least predicted work first, with an age that counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import fsum, inf

from headway.core.cost import CostModel
from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.order.keyed import KeyedOrder
from headway.policies.order.remaining_work import RemainingWork
from headway.policies.order.sorted_index import Key

_RECENT_JOBS = 400
"""Newcomers that say what is usual, so that it follows the traffic and the machine."""
_CHANGED = 2.0
"""What is usual stays as it is until newcomers bring so many times as much, or as little."""


class UsualWork:
    """A unit of work: about the mean of what newcomers of late were estimated to bring; those long ago fade.

    It changes in steps, so that what was measured by it can be measured anew. Newcomers between two steps count alike,
    in any order. O(1) a job.
    """

    def __init__(self) -> None:
        self._unit_s = 0.0
        self._mean_s = 0.0
        self._num_seen = 0
        self._new_s: list[float] = []

    def learn(self, work_s: float) -> None:
        """A job came with so much work."""
        self._new_s.append(work_s)

    def times(self, work_s: float) -> float:
        """So much work, in units; in seconds before the first step."""
        return work_s / self._unit_s if self._unit_s else work_s

    def settle(self) -> bool:
        """After a step: take the newcomers in. Whether the unit has changed."""
        if not self._new_s:
            return False
        count, new_s = len(self._new_s), fsum(self._new_s)
        self._new_s.clear()
        self._num_seen = min(self._num_seen + count, _RECENT_JOBS)
        self._mean_s += (new_s / count - self._mean_s) * min(1.0, count / self._num_seen)
        if self._unit_s / _CHANGED < self._mean_s < self._unit_s * _CHANGED or not self._mean_s:
            return False
        self._unit_s = self._mean_s
        return True


DEFAULT_GIVE_WAY_S = 1000.0


class PredictedRemaining(KeyedOrder):
    """Smallest arrival + `give_way_s` x remaining work first: shortest remaining time first, aged.

    Work is in units of what newcomers bring of late (`UsualWork`): a job of the usual work gives way to less work that
    comes up to `give_way_s` later, whatever the traffic and the machine. The time now is the same for all and cancels
    out, so keys do not drift. With 0 the order is first come, first served; with a very large one, shortest work first.

    No job is overtaken for ever. A waiting job with the key K = arrival + give_way_s x work is passed only by jobs with
    a smaller key. Work is never negative, so all that pass it arrived before K, within give_way_s x work of its own
    arrival: finitely many, each of finite work. The key of a waiting job changes only with the unit of work, which has
    a least, and with what estimates rest on (`RemainingWork`). The key of a running job grows in two cases more: its
    answer outgrew its prediction, which its limit bounds; or its KV was dropped, by the prefill to be done again.

    Costs: as `KeyedOrder`. An answer's key is taken anew at a few points of its life (`RemainingWork`, with the error),
    and only if its rank is asked for; while plans rank all that run, beside the step that brings it on, so that the
    next plan finds it done. When newcomers bring twice the work, or half, all are sorted anew by the work last
    estimated, O(live log live), a few microseconds a job, and then estimated anew, 64 a step.
    Source: Schrage 1968 for the rule; ageing by arrival as in Kleinrock's delay-dependent priorities, linear in time,
    so that it cancels.
    """

    trusts_predictions = True
    _estimator: type[RemainingWork] = RemainingWork

    def __init__(
        self,
        cost: CostModel | None = None,
        *,
        give_way_s: float = DEFAULT_GIVE_WAY_S,
        memory: bool = False,
    ) -> None:
        if not 0 <= give_way_s < inf:
            raise ConfigError.of("give_way_s", give_way_s, "0 or more seconds")
        super().__init__()
        self.give_way_s = give_way_s
        self.memory = memory
        self.work = self._estimator(cost, memory=memory)
        self.usual = UsualWork()
        self._num_ranked = 0
        self.renewed: Sequence[Job] = ()
        """Whose work was estimated anew beside the last step."""

    def key(self, job: Job) -> Key:
        """(arrival + give_way_s x work, arrival, id), with the work estimated now."""
        return self._key(job, self.work.estimate(job))

    def _key(self, job: Job, work_s: float) -> Key:
        return (job.arrival_s + self.give_way_s * self.usual.times(work_s), job.arrival_s, job.id)

    def add(self, job: Job) -> None:
        """Index a job that starts to wait; learn from a newcomer how much work is usual."""
        newcomer = job not in self
        super().add(job)
        if newcomer:
            self.usual.learn(self.work.of(job))

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

    def _sort_anew(self) -> None:
        """Take every key by the unit that is usual now, and the work last estimated."""
        work_s = self.work.of
        self._keys = {job: self._key(job, work_s(job)) for job in self._keys}
        self._index.rekey(self._keys)

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
        if self.usual.settle():
            self._sort_anew()
            self.work.doubt_all()
        self.renewed = self.work.next_in_doubt()
        for job in self.renewed:
            self.touch(job)
        num_ranked, self._num_ranked = self._num_ranked, 0
        if num_ranked >= len(outcome.tokens):
            self.renew([job for job in outcome.tokens if job in self], coming_tokens=1)

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
