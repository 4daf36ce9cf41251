"""What a step costs on an engine without vLLM's overlap and kernels for small weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway.core.batch_shape import BatchShape
from headway.errors import ConfigError
from headway.predict.calibration import Calibration, StepSeconds

DEQUANTISING = 0.3
"""A step on four-bit weights takes so much longer, each weight being widened when it is used (0.2 to 0.4)."""
_WEIGHT_SHARE = 1 / 4
"""Four bits of sixteen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SynchronousStep:
    """A step whose host work comes before the device's, every time, as in a plain generate loop."""

    device: StepSeconds
    host_s: float = 0.0
    host_job_s: float = 0.0
    device_factor: float = 1.0

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of one step of this shape, host and device one after the other."""
        host_s = self.host_s + self.host_job_s * shape.num_jobs
        return host_s + self.device_factor * self.device.step_s(shape)


def synchronous(calibration: Calibration) -> SynchronousStep:
    """The step of an engine that hides nothing of its host's work."""
    return SynchronousStep(
        device=calibration.step, host_s=calibration.host_s, host_job_s=calibration.host_job_s
    )


def four_bit(calibration: Calibration, overhead: float = DEQUANTISING) -> Calibration:
    """The same instance with weights of four bits: room for more KV, and a device that takes longer a step.

    What the weights no longer take becomes KV memory. Raises ConfigError where the model's sizes are not
    known. Source: Magnus baseline VSQ; the extra time is an assumption, as are its longer answers, which
    the trace would have to bring.
    """
    if calibration.model is None:
        raise ConfigError(f"{calibration.name} does not say how large its model is; accepted: one that does")
    freed_bytes = calibration.model.weight_bytes * (1 - _WEIGHT_SHARE)
    return replace(
        calibration,
        step=SynchronousStep(device=calibration.step, device_factor=1 + overhead),
        kv_capacity_tokens=calibration.kv_capacity_tokens
        + int(freed_bytes // calibration.kv_bytes_per_token),
    )
