"""Real step times held against predicted ones, for some of the steps."""

from __future__ import annotations

from headway.core.batch_shape import shape_of
from headway.core.cost import CostModel
from headway.core.plan import StepOutcome
from headway.core.step_quality import StepTimeQuality

_EVERY = 4
"""Steps from one comparison to the next: a comparison sums over the batch."""


class ComparedSteps:
    """Tells `quality` what two steps in a row took, and what was predicted of them: the first two of every four.

    Two, since with asynchronous scheduling the time between two plans is that of the step before: where decodes and
    prompts take turns, the other's. O(jobs of the step) for these two, else O(1).
    """

    def __init__(self, cost: CostModel, quality: StepTimeQuality) -> None:
        self._cost = cost
        self._quality = quality
        self._num_seen = 0
        self._predicted_s = 0.0
        self._last_s = 0.0

    def observe(self, outcome: StepOutcome, step_s: float) -> None:
        """A step was filled, `step_s` after the one before it; 0 if nobody knows, and then two are not compared."""
        turn = self._num_seen % _EVERY
        self._num_seen += 1
        if turn == 0:
            self._predicted_s = self._predict_s(outcome)
        elif not step_s:
            self._predicted_s = 0.0
        elif turn == 1 and self._predicted_s:
            self._predicted_s += self._predict_s(outcome)
        elif turn == 2:
            self._quality.observe(self._predicted_s, self._last_s + step_s)
        self._last_s = step_s

    def _predict_s(self, outcome: StepOutcome) -> float:
        return self._cost.step_s(shape_of(outcome.tokens)) if outcome.tokens else 0.0
