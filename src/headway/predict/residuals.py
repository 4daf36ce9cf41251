"""How far predictions were off, in the few numbers that are kept of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

QUANTILES = 21
"""Residual quantiles kept: the least, the greatest and every 5 % between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Judged predictions. Errors are |measured / predicted - 1|, fractions.

    `residuals` are measured over predicted, ascending at equal distances; (1.0,) where there are none.
    """

    num_rows: int
    median_error: float
    p90_error: float
    residuals: Annotated[tuple[Annotated[float, msgspec.Meta(gt=0)], ...], msgspec.Meta(min_length=1)]


def errors_of(pairs: Sequence[tuple[float, float]]) -> Errors:
    """The errors of pairs of measured and predicted seconds."""
    ratios = sorted(measured / predicted for measured, predicted in pairs)
    if not ratios:
        return Errors(num_rows=0, median_error=0.0, p90_error=0.0, residuals=(1.0,))
    errors = sorted(abs(ratio - 1) for ratio in ratios)
    return Errors(
        num_rows=len(ratios),
        median_error=quantile(errors, 0.5),
        p90_error=quantile(errors, 0.9),
        residuals=tuple(quantile(ratios, step / (QUANTILES - 1)) for step in range(QUANTILES)),
    )


def quantile(ascending: Sequence[float], fraction: float) -> float:
    """The value below which `fraction` of them lie, linear between neighbours."""
    place = fraction * (len(ascending) - 1)
    low = int(place)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (place - low) * (ascending[high] - ascending[low])
