"""What a step-time model predicted of the steps it learns from, told before it learns."""

from __future__ import annotations

from collections.abc import Callable

from headway.core.batch_shape import BatchShape
from headway.predict.step_time import StepTimeModel


class JudgedSteps:
    """Stands between a step clock and its model: tells of each step its shape, the seconds predicted (0: not yet
    known) and those that came, then lets the model learn.

    Only steps that the model learns from are told of, a few once it is ready: their shapes are there anyway.
    Adds one prediction to each of those, about 3 us.
    """

    def __init__(self, model: StepTimeModel, tell: Callable[[BatchShape, float, float], None]) -> None:
        self._model = model
        self._tell = tell

    @property
    def ready(self) -> bool:
        """Whether the model is."""
        return self._model.ready

    def wants(self, step: int) -> bool:
        """Whether the model wants the step."""
        return self._model.wants(step)

    def observe(self, shape: BatchShape, seconds: float) -> None:
        """A step of this shape took this long."""
        if seconds > 0:
            self._tell(shape, self._model.step_s(shape), seconds)
        self._model.observe(shape, seconds)
