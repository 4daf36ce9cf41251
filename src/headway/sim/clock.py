"""How long things take in the simulated world, which no policy can see but by watching."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from headway.core.batch_shape import BatchShape
from headway.predict.calibration import StepSeconds


class Clock:
    """Seconds of a step: the fitted law times a residual drawn from those measured, seeded.

    `residuals` are ascending quantiles at equal distances, between which is interpolated; (1.0,) is no
    noise. One draw a step, in the order of steps, so that runs repeat byte for byte.
    """

    def __init__(self, law: StepSeconds, residuals: Sequence[float] = (1.0,), seed: int = 0) -> None:
        self._law = law
        self._residuals = (*residuals, residuals[-1])
        self._intervals = len(residuals) - 1
        self._random = Random(seed).random

    def step_s(self, shape: BatchShape) -> float:
        """Seconds the next step of this shape takes."""
        seconds = self._law.step_s(shape)
        if not self._intervals:
            return seconds * self._residuals[0]
        place = self._random() * self._intervals
        below = int(place)
        low, high = self._residuals[below], self._residuals[below + 1]
        return seconds * (low + (high - low) * (place - below))
