"""The engine of Magnus's experiments: Hugging Face's `generate` with ChatGLM-6B on a V100, as a law of its steps.

Also the times of batches on it, their predictions, and the toy example that its one constant is fitted to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import sqrt

from headway.core.batch_shape import BatchShape
from headway.predict.models.known_models import model_shape
from headway.predict.steps.batch_time import BatchRow, BatchTimeModel
from headway.predict.steps.calibration import Calibration, StepSeconds
from headway.predict.steps.hardware import catalogue, hardware
from headway_reproduce.magnus.setting import (
    CAPACITY_TOKENS,
    HARDWARE,
    MODEL,
    PAPER_TOY_VS_S,
    TIMES_LEARN_EVERY_S,
    TOY_LARGE,
    TOY_SMALL,
    VS,
    VS_BATCH,
    VSQ,
)
from headway_reproduce.magnus.static_batches import decode_s, prefill_s

_NO_NOISE = (1.0,)
_DEQUANTISING = 0.3
"""Additional time, as a share, of a step on four-bit weights, each being widened when it is used (0.2 to 0.4)."""


@dataclass(frozen=True, slots=True)
class EagerStep:
    """A step of an eager engine: the device's time, the cost of copying its cache, and a constant.

    `compute` stretches the device's time, as dequantising weights does. The engine appends to its KV cache by
    concatenation, so that every decode reads and rewrites all of it: `copy_token_s` for each token of context.
    """

    device: StepSeconds
    overhead_s: float
    copy_token_s: float = 0.0
    compute: float = 1.0

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of one step of this shape."""
        copied_s = self.copy_token_s * shape.decode_context_tokens
        return self.overhead_s + copied_s + self.compute * self.device.step_s(shape)


def engine_costs(policy: str, overhead_s: float, *, copies: float = 1.0) -> Calibration:
    """The step costs of an instance under a policy, whose KV cache takes `copies` times as long to copy; 0: written in
    place.

    Without noise: the V100's law is derived, and no residuals of it were measured.
    """
    base = _device()
    step = EagerStep(
        base.step,
        overhead_s,
        copy_token_s=copies * _copy_token_s(),
        compute=1 + _DEQUANTISING if policy == VSQ else 1.0,
    )
    return replace(base, step=step, residuals=_NO_NOISE)


@lru_cache(maxsize=1)
def _device() -> Calibration:
    return hardware(HARDWARE).calibrate(model_shape(MODEL))


def _copy_token_s() -> float:
    """Seconds of reading and writing the KV of one token, at the rate of the device's elementwise kernels."""
    found = hardware(HARDWARE)
    kernels = catalogue().kernels[found.kernels]
    return kernels.elementwise_s(found.peaks, 0, 2 * model_shape(MODEL).kv_bytes_per_token)


# ---- batches, one after another ------------------------------------------------------------------------

Lengths = Sequence[tuple[int, int]]
"""Prompt and output tokens of each member."""


def batches_seconds(batches: Iterable[Lengths], step: StepSeconds) -> float:
    """Seconds of one instance for these batches, one after another; they fit its memory."""
    seconds = 0.0
    for batch in batches:
        prompt, output = (max(lengths) for lengths in zip(*batch, strict=True))
        seconds += prefill_s(step, len(batch), prompt)
        seconds += decode_s(step, len(batch), prompt, output)
    return seconds


# ---- the toy -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Toy:
    """21 requests on one instance, first as vs batches them, then as Magnus does."""

    vs_s: float
    magnus_s: float
    fitted_overhead_s: float

    @property
    def ratio(self) -> float:
        """The time of vs relative to Magnus."""
        return self.vs_s / self.magnus_s


@lru_cache(maxsize=4)
def toy(*, copies: float = 1.0) -> Toy:
    """The toy example with the fitted constant: the step overhead with which vs takes the paper's time.

    Time is linear in the overhead, so two points give it. Source: Magnus section II; the arrangement is ours: each
    batch of vs holds one large request and six small ones.
    """
    large, small = TOY_LARGE.count, TOY_SMALL.count
    mixed = [_toy_batch(1, small // large)] * large
    sorted_out = [_toy_batch(0, small), _toy_batch(large, 0)]
    assert len(mixed[0]) == VS_BATCH, "a batch of vs is full"

    def seconds(batches: Sequence[Lengths], overhead_s: float) -> float:
        return batches_seconds(batches, engine_costs(VS, overhead_s, copies=copies).step)

    free_s = seconds(mixed, 0.0)
    overhead_s = (PAPER_TOY_VS_S - free_s) / (seconds(mixed, 1.0) - free_s)
    return Toy(seconds(mixed, overhead_s), seconds(sorted_out, overhead_s), overhead_s)


def _toy_batch(large: int, small: int) -> Lengths:
    return [(TOY_LARGE.tokens, TOY_LARGE.tokens)] * large + [(TOY_SMALL.tokens, TOY_SMALL.tokens)] * small


# ---- batch times, predicted for a run and learned from its batches on its clock ------------------------

_SIZES = (1, 2, 4, 7, 14, 28, 56, 112, 224)
_PROMPTS = (8, 32, 64, 128, 256, 512, 1024)
_OUTPUTS = (4, 16, 32, 64, 128, 256, 512, 1024)
"""Output lengths profiled before the run, as far as memory holds them (ours: the paper does not say what it starts
from).
"""


@dataclass(slots=True)
class BatchTimes:
    """Magnus's estimator of batch times, refitted every two minutes of a clock that its owner moves (section III-D)."""

    model: BatchTimeModel
    now_s: float = 0.0
    _squares: float = 0.0
    _batches: int = 0

    @classmethod
    def of(cls, profile: Iterable[BatchRow]) -> BatchTimes:
        """An estimator that starts from a profile's batches."""
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
        """Root mean square error for batches whose length was known; None before the first."""
        return sqrt(self._squares / self._batches) if self._batches else None


def profile(step: StepSeconds) -> tuple[BatchRow, ...]:
    """Times of a grid of batches, those that memory holds, on an engine with these steps. Half a second."""
    return tuple(
        (size, prompt, output, batches_seconds([[(prompt, output)] * size], step))
        for size, prompt, output in product(_SIZES, _PROMPTS, _OUTPUTS)
        if size * (prompt + output) <= CAPACITY_TOKENS
    )
