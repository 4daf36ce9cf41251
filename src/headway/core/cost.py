"""What a policy may know of cost."""

from __future__ import annotations

from typing import Protocol


class CostModel(Protocol):
    """Predictions of work on this engine, learned from finished steps only."""

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds one prompt of `num_tokens` tokens takes when prefilled alone."""
        ...


class UnknownCost:
    """Cost before anything was measured: nothing takes time, so slack is plain time to the deadline."""

    def prefill_s(self, num_tokens: int) -> float:
        """Zero for every prompt."""
        return 0.0
