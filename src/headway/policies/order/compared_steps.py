"""Compares the times of steps with their predictions."""

from __future__ import annotations

from collections.abc import Mapping

from headway.core.batch_shape import shape_of
from headway.core.cost import CostModel
from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.core.prediction_quality import StepTimeQuality

_EVERY = 4
"""Steps between two comparisons, each of which sums over the batch."""
_LAST_STEPS = 64
"""A prediction is reused for this many steps of the same decodes, which read one more token in each."""


class ComparedSteps:
    """Reports to `quality` what a step took and what was predicted, for the first of every four pairs of steps.

    With asynchronous scheduling the time between two plans is that of the step before, which may differ a lot if one
    has prompts and the other none. So the time after two steps is compared with the nearer of their two predictions.
    O(jobs of the step) for these two, else O(1); a step with the same mapping as the one before is not predicted anew.
    """

    def __init__(self, cost: CostModel, quality: StepTimeQuality) -> None:
        self._cost = cost
        self._quality = quality
        self._num_seen = 0
        self._predicted_s: list[float] = []
        self._tokens: Mapping[Job, int] = {}
        self._step_s = 0.0
        self._lasts_until = 0

    def observe(self, outcome: StepOutcome, step_s: float) -> None:
        """A step was filled, `step_s` after the one before; with 0, unknown, nothing is compared."""
        turn = self._num_seen % _EVERY
        self._num_seen += 1
        if turn == 0:
            self._predicted_s.clear()
        if turn <= 1 and outcome.tokens:
            self._predicted_s.append(self._predicted(outcome.tokens))
        elif turn == 2 and step_s and self._predicted_s and all(self._predicted_s):
            nearer_s = min(self._predicted_s, key=lambda each_s: max(each_s / step_s, step_s / each_s))
            self._quality.observe(nearer_s, step_s)

    def forget(self, job: Job) -> None:
        """Forget a job that is gone."""
        if job in self._tokens:
            self._tokens = {}

    def _predicted(self, tokens: Mapping[Job, int]) -> float:
        if tokens is not self._tokens or self._num_seen > self._lasts_until or not self._step_s:
            self._tokens, self._lasts_until = tokens, self._num_seen + _LAST_STEPS
            self._step_s = self._cost.step_s(shape_of(tokens))
        return self._step_s
