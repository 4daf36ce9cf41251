"""What an engine on one machine costs: the one object the simulator's clock is made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headway.core.batch_shape import BatchShape
from headway.predict.model_shape import ModelShape
from headway.predict.transfer import TransferModel


class StepSeconds(Protocol):
    """Seconds a step takes, without noise."""

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of one step of this shape, more than 0. O(1)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphedStep:
    """A step law, and what a step of more tokens than CUDA graphs hold takes besides."""

    kernels: StepSeconds
    ungraphed_s: float
    graphed_tokens: int

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of one step of this shape."""
        seconds = self.kernels.step_s(shape)
        return seconds + self.ungraphed_s if shape.num_tokens > self.graphed_tokens else seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One model on one instance (all of its GPUs together), measured here or fitted to published times.

    `host_s`, and `host_job_s` more for each job of the step, is what the host needs before the device can
    start; asynchronous scheduling hides it behind the step before, so it is not part of `step.step_s`.
    `ungraphed_s` is what a step beyond CUDA graphs takes besides, whose kernels are launched one by one.
    `residuals` are measured over predicted seconds, as ascending quantiles at equal distances, of steps the
    fit has not seen; (1.0,) where nothing was measured. `model` is what policies' own models start from; None:
    its sizes are not known.
    """

    name: str
    provenance: str
    derived: bool
    step: StepSeconds
    host_s: float
    residuals: tuple[float, ...]
    to_host: TransferModel
    to_device: TransferModel
    kv_bytes_per_token: int
    kv_capacity_tokens: int
    host_job_s: float = 0.0
    ungraphed_s: float = 0.0
    model: ModelShape | None = None

    def step_with(self, graphed_tokens: int) -> StepSeconds:
        """The step law of an engine whose CUDA graphs hold steps of so many tokens at most, 0 if it has none."""
        if not self.ungraphed_s:
            return self.step
        return GraphedStep(kernels=self.step, ungraphed_s=self.ungraphed_s, graphed_tokens=graphed_tokens)
