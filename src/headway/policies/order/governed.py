"""Orders by predicted lengths while they hold, else by queues that need none."""

from __future__ import annotations

from collections.abc import Sequence

from headway.core.cost import CostModel
from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.core.prediction_quality import PredictionQuality, TrustRule
from headway.core.view import StepView
from headway.policies.order.predicted_remaining import DEFAULT_TAIL, PredictedRemaining
from headway.policies.order.skip_join_mlfq import SkipJoinMlfq

_RULE = TrustRule()


class Governed:
    """`predicted-remaining` while predictions are trusted, `skip-join-mlfq` while they are not.

    Both indexes are always kept up to date, so a change costs no sort. `quality` watches the finished answers that had
    a prediction; its margin prevents frequent changes. It starts with the queues: without predictions, or with bad ones
    from the start, this order is `skip-join-mlfq`. With mixed traffic the requests that have predictions decide for
    all.

    Costs: both orders' for changes of a queue, one order's for a ranking; a finished answer takes 10 us more on
    average. Its forecast is that of the order in use: ENST of the queues, or the predicted work that ranks ahead.
    """

    def __init__(
        self,
        cost: CostModel | None = None,
        *,
        tail: float = DEFAULT_TAIL,
        min_answers: int = _RULE.min_answers,
        least_tau: float = _RULE.least_tau,
        trusted_at_first: bool = _RULE.trusted_at_first,
    ) -> None:
        self.quality = PredictionQuality(
            TrustRule(
                min_answers=min_answers,
                least_tau=least_tau,
                trusted_at_first=trusted_at_first,
            )
        )
        self._predicted = PredictedRemaining(cost, tail=tail)
        self._queues = SkipJoinMlfq(cost)

    @property
    def trusts_predictions(self) -> bool:
        """Whether predictions rank now."""
        return self.quality.trusted

    @property
    def _in_use(self) -> PredictedRemaining | SkipJoinMlfq:
        return self._predicted if self.quality.trusted else self._queues

    def add(self, job: Job) -> None:
        """Index a job in both orders."""
        self._predicted.add(job)
        self._queues.add(job)

    def remove(self, job: Job) -> None:
        """Forget a job that no longer waits."""
        self._predicted.remove(job)
        self._queues.remove(job)

    def end(self, job: Job) -> None:
        """Forget a job."""
        self._predicted.end(job)
        self._queues.end(job)

    def finished(self, job: Job) -> None:
        """Compare a finished answer with its prediction; perhaps change orders."""
        self._predicted.finished(job)
        if job.predicted_length is None:
            return
        self.quality.observe(job.predicted_length, job.num_output_tokens)

    def touch(self, job: Job) -> None:
        """Update a job's rank."""
        self._predicted.touch(job)
        self._queues.touch(job)

    def top(self, k: int, now_s: float) -> list[Job]:
        """The first k waiting jobs, by the order in use."""
        return self._in_use.top(k, now_s)

    def rank(self, jobs: Sequence[Job], now_s: float) -> Sequence[Job]:
        """Sort `jobs` by the order in use."""
        return self._in_use.rank(jobs, now_s)

    def next_service_s(self, jobs: Sequence[Job], now_s: float, width: int) -> list[float]:
        """Expected seconds until each is served next, by the order in use. O(n log n)."""
        if not self.quality.trusted:
            return self._queues.next_service_s(jobs, now_s, width)
        # The work of those that rank before it.
        ahead_s = 0.0
        found: dict[Job, float] = {}
        for job in self._predicted.rank(jobs, now_s):
            found[job] = ahead_s
            ahead_s += self._predicted.work.of(job)
        return [found[job] for job in jobs]

    def num_at_first(self, levels: int) -> int:
        """Live jobs at the first levels of the queues, which show a burst even while predictions rank."""
        return self._queues.num_at_first(levels)

    def next_change_s(self, view: StepView) -> float:
        """As the order in use; which one that is changes only when an answer ends."""
        return self._in_use.next_change_s(view)

    def observe(self, outcome: StepOutcome) -> None:
        """Let both orders follow the step."""
        self._predicted.observe(outcome)
        self._queues.observe(outcome)
