"""What one engine's policy knows of cost: what its steps and its copies have shown."""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.core.batch_shape import BatchShape
from headway.predict.copy_time import CopyTimeModel
from headway.predict.step_time import StepTimeModel


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedCost:
    """The cost model of a policy, put together from models that the owner of the clock teaches.

    Until a copy was seen in one direction it is taken to be as fast as in the other: a victim comes back long
    after it left, and half a round trip is no estimate of the whole. Loads from a connector's store are counted in
    tokens, copies to and from the host in blocks.
    """

    steps: StepTimeModel
    kv_tokens: int = 0
    to_host: CopyTimeModel = field(default_factory=CopyTimeModel)
    to_device: CopyTimeModel = field(default_factory=CopyTimeModel)
    from_store: CopyTimeModel = field(default_factory=CopyTimeModel)

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds one prompt of `num_tokens` tokens takes when prefilled alone."""
        return self.steps.prefill_s(num_tokens)

    def step_s(self, shape: BatchShape) -> float:
        """Seconds a step of this shape takes."""
        return self.steps.step_s(shape)

    def step_within_s(self, shape: BatchShape, confidence: float) -> float:
        """Seconds that a step of this shape stays within with this probability (0-1, exclusive)."""
        return self.steps.predict(shape).within_s(confidence)

    def swap_out_s(self, num_blocks: int) -> float:
        """Seconds a copy of `num_blocks` KV blocks to the host takes once it has begun."""
        return self.to_host.seconds(num_blocks) or self.to_device.seconds(num_blocks)

    def swap_in_s(self, num_blocks: int) -> float:
        """Seconds a copy of `num_blocks` KV blocks back to the device takes once it has begun."""
        return self.to_device.seconds(num_blocks) or self.to_host.seconds(num_blocks)

    def load_s(self, num_tokens: int) -> float:
        """Seconds a load of the KV of `num_tokens` tokens from a connector's store takes once it has begun."""
        return self.from_store.seconds(num_tokens)
