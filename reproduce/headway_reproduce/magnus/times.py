"""Batch times predicted for a simulated run, and learned from its batches on its clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt

from headway.predict.batch_time import BatchRow, BatchTimeModel, profiled_grid
from headway.predict.calibration import StepSeconds
from headway_reproduce.magnus.engine import batches_seconds
from headway_reproduce.magnus.setting import CAPACITY_TOKENS, TIMES_LEARN_EVERY_S

_SIZES = (1, 2, 4, 7, 14, 28, 56, 112, 224)
_PROMPTS = (8, 32, 64, 128, 256, 512, 1024)
_OUTPUTS = (4, 16, 32, 64, 128, 256, 512, 1024)
"""Profiled before the run, as far as memory holds them (ours: the paper does not say what it starts from)."""


@dataclass(slots=True)
class BatchTimes:
    """Magnus's estimator of batch times, refitted every two minutes of a clock that its owner moves (section III-D)."""

    model: BatchTimeModel
    now_s: float = 0.0
    _squares: float = 0.0
    _batches: int = 0

    @classmethod
    def of(cls, profile: Iterable[BatchRow]) -> BatchTimes:
        """Starts from what the batches of a profile take."""
        return cls(BatchTimeModel(profile, period_s=TIMES_LEARN_EVERY_S))

    def predict(self, size: int, prompt_tokens: int, output_tokens: int) -> float:
        """As `BatchTime.predict`."""
        return self.model.predict(size, prompt_tokens, output_tokens)

    def observe(self, size: int, prompt_tokens: int, output_tokens: int, seconds: float) -> None:
        """As `BatchTime.observe`; fits again when that is due."""
        error_s = self.model.predict(size, prompt_tokens, output_tokens) - seconds
        self._squares += error_s * error_s
        self._batches += 1
        self.model.observe(size, prompt_tokens, output_tokens, seconds)
        if self.model.due(self.now_s):
            self.model.refit(self.now_s)

    def rmse_s(self) -> float | None:
        """Root mean square of its errors about batches whose length was known; None before the first."""
        return sqrt(self._squares / self._batches) if self._batches else None


def profile(step: StepSeconds) -> tuple[BatchRow, ...]:
    """What batches of a grid take on an engine with these steps, those that memory holds. Half a second."""
    grid: list[BatchRow] = []
    for size in _SIZES:
        for prompt in _PROMPTS:
            outputs = [output for output in _OUTPUTS if size * (prompt + output) <= CAPACITY_TOKENS]
            grid += profiled_grid(
                lambda size, prompt, output: batches_seconds([[(prompt, output)] * size], step),
                sizes=(size,),
                prompt_tokens=(prompt,),
                output_tokens=outputs,
            )
    return tuple(grid)
