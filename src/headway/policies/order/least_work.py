"""Least work first, aged; by predicted lengths while they hold, by the usual length while they do not."""

from __future__ import annotations

from collections.abc import Sequence

from headway.core.cost import CostModel
from headway.core.job import Job
from headway.core.prediction_quality import PredictionQuality, TrustRule
from headway.policies.order.predicted_remaining import PredictedRemaining
from headway.policies.order.remaining_work import DEFAULT_DECODES_A_STEP

_RULE = TrustRule()
DEFAULT_PATIENCE = 1000.0


class LeastWork(PredictedRemaining):
    """`predicted-remaining` with the memory that a job holds counted as work, and only lengths that are trusted.

    While predictions are bad, or there are none, everybody is expected to bring as much as answers did of late, with
    the usual doubt: the more an answer has brought, the more is expected of it yet, so long ones sink as in a feedback
    queue, and long prompts, which are known, wait for short ones. Every live job's key is taken anew when that
    changes. Nobody is overtaken for ever, as in `predicted-remaining`. Costs: as there; a change O(live log live).
    """

    def __init__(
        self,
        cost: CostModel | None = None,
        *,
        patience: float = DEFAULT_PATIENCE,
        decodes_a_step: float = DEFAULT_DECODES_A_STEP,
        memory: bool = True,
        least_tau: float = _RULE.least_tau,
        trusted_at_first: bool = _RULE.trusted_at_first,
    ) -> None:
        super().__init__(cost, patience=patience, decodes_a_step=decodes_a_step, memory=memory)
        self.least_tau = least_tau
        self.trusted_at_first = trusted_at_first
        self.quality = PredictionQuality(TrustRule(least_tau=least_tau, trusted_at_first=trusted_at_first))
        self._work.believes_predictions = self.quality.trusted

    @property
    def trusts_predictions(self) -> bool:  # type: ignore[override]
        """Whether predictions rank now."""
        return self.quality.trusted

    def finished(self, job: Job) -> None:
        """Compare a finished answer with what was predicted of it; perhaps change over."""
        super().finished(job)
        if job.predicted_length is None:
            return
        self.quality.observe(job.predicted_length, job.num_output_tokens)
        if self.quality.trusted is not self._work.believes_predictions:
            self._work.believes_predictions = self.quality.trusted
            for live in list(self._keys):
                self.touch(live)

    def next_service_s(self, jobs: Sequence[Job], now_s: float, width: int) -> list[float]:
        """Seconds of work of those that rank before each."""
        return self.work_ahead_s(jobs)

    def num_at_first(self, levels: int) -> int:
        """None: it has no levels."""
        return 0
