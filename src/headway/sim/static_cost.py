"""What a step costs on an engine without vLLM's overlap of host and device."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.batch_shape import BatchShape
from headway.predict.calibration import Calibration, StepSeconds


@dataclass(frozen=True, slots=True, kw_only=True)
class SynchronousStep:
    """A step whose host work comes before the device's, every time, as in a plain generate loop."""

    device: StepSeconds
    host_s: float = 0.0
    host_job_s: float = 0.0

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of one step of this shape, host and device one after the other."""
        host_s = self.host_s + self.host_job_s * shape.num_jobs
        return host_s + self.device.step_s(shape)


def synchronous(calibration: Calibration) -> SynchronousStep:
    """The step of an engine that hides nothing of its host's work."""
    return SynchronousStep(
        device=calibration.step, host_s=calibration.host_s, host_job_s=calibration.host_job_s
    )
