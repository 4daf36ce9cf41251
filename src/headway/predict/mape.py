"""The one figure published cost models are compared by."""

from __future__ import annotations

from collections.abc import Iterable


def mape(pairs: Iterable[tuple[float, float]]) -> float | None:
    """Mean of |predicted / measured - 1| over pairs of measured and predicted seconds, a fraction; None for none.

    Source: AdaptiveLLM section 4.5 (mean absolute percentage error).
    """
    errors = [abs(predicted / measured - 1) for measured, predicted in pairs]
    return sum(errors) / len(errors) if errors else None
