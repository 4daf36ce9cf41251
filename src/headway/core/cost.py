"""The cost model that policies may use."""

from __future__ import annotations

from typing import Protocol

from headway.core.batch_shape import BatchShape


class CostModel(Protocol):
    """Predictions of work on this engine, learned only from finished steps and copies; 0 while unknown."""

    @property
    def kv_tokens(self) -> int:
        """Most tokens whose KV the device holds."""
        return 0

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds of one prompt of `num_tokens` tokens prefilled alone."""
        return 0.0

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of a step of this shape."""
        return 0.0

    def step_within_s(self, shape: BatchShape, confidence: float) -> float:
        """Seconds that a step of this shape stays within with this probability (0-1, exclusive)."""
        return 0.0

    def swap_out_s(self, num_blocks: int) -> float:
        """Seconds of a copy of `num_blocks` KV blocks to the host after its start."""
        return 0.0

    def swap_in_s(self, num_blocks: int) -> float:
        """Seconds of a copy of `num_blocks` KV blocks back to the device after its start."""
        return 0.0

    def load_s(self, num_tokens: int) -> float:
        """Seconds of a load of `num_tokens` tokens' KV from a connector's store after its start."""
        return 0.0


class UnknownCost(CostModel):
    """The cost model before anything was measured: nothing takes time, so slack is plain time to the deadline."""
