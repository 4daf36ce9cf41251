"""Costs to work out by hand."""

from __future__ import annotations

from headway.core.cost import UnknownCost
from headway.core.length_estimate import LengthEstimate


class PerToken(UnknownCost):
    """A second a token: with 8 answers a step, a token to come is an eighth of a second of work."""

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds for a prompt."""
        return float(num_tokens)


def exactly(tokens: float) -> LengthEstimate:
    """A prediction without doubt."""
    return LengthEstimate(tokens, tokens, tokens)
