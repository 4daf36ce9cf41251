"""What a policy may know of cost."""

from __future__ import annotations

from typing import Protocol

from headway.core.batch_shape import BatchShape


class CostModel(Protocol):
    """Predictions of work on this engine, learned from finished steps and copies only; 0 while unknown."""

    @property
    def kv_tokens(self) -> int:
        """Tokens whose KV the device holds at most."""
        return 0

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds one prompt of `num_tokens` tokens takes when prefilled alone."""
        return 0.0

    def step_s(self, shape: BatchShape) -> float:
        """Seconds a step of this shape takes."""
        return 0.0

    def step_within_s(self, shape: BatchShape, confidence: float) -> float:
        """Seconds that a step of this shape stays within with this probability (0-1, exclusive)."""
        return 0.0

    def swap_out_s(self, num_blocks: int) -> float:
        """Seconds a copy of `num_blocks` KV blocks to the host takes once it has begun."""
        return 0.0

    def swap_in_s(self, num_blocks: int) -> float:
        """Seconds a copy of `num_blocks` KV blocks back to the device takes once it has begun."""
        return 0.0

    def load_s(self, num_tokens: int) -> float:
        """Seconds a load of the KV of `num_tokens` tokens from a connector's store takes once it has begun."""
        return 0.0


class UnknownCost(CostModel):
    """Cost before anything was measured: nothing takes time, so slack is plain time to the deadline."""
