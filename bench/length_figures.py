"""How good predicted lengths are, and what they cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from headway.core.length_estimate import LengthEstimate
from headway.core.prediction_quality import kendall_tau

Tokens = npt.NDArray[np.float64]
_TIMED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Errors in tokens; Kendall's tau; share of answers within their interval, None for a way without one; times."""

    mae: float
    rmse: float
    tau: float
    coverage: float | None = None
    encode_us: float | None = None
    predict_us: float | None = None


@dataclass(frozen=True, slots=True)
class Costs:
    """Median microseconds of one request: its features, and what the forest then takes."""

    encode_us: float
    predict_us: float


def figures(estimates: Sequence[LengthEstimate], tokens: Tokens, costs: Costs | None = None) -> Figures:
    """The figures of predictions with an interval."""
    held = [
        each.low_tokens <= actual <= each.high_tokens for each, actual in zip(estimates, tokens, strict=True)
    ]
    plain = plain_figures(np.array([each.tokens for each in estimates]), tokens)
    return Figures(
        mae=plain.mae,
        rmse=plain.rmse,
        tau=plain.tau,
        coverage=float(np.mean(held)),
        encode_us=None if costs is None else costs.encode_us,
        predict_us=None if costs is None else costs.predict_us,
    )


def plain_figures(predicted: Tokens, tokens: Tokens) -> Figures:
    """The figures of predictions that are one number each."""
    errors = predicted - tokens
    return Figures(
        mae=float(np.abs(errors).mean()),
        rmse=float(np.sqrt((errors**2).mean())),
        tau=kendall_tau(zip(predicted.tolist(), tokens.tolist(), strict=True)),
    )


def median_us(call: Callable[[int], object], count: int) -> float:
    """Median microseconds of `call(index)` over the first indices, one at a time."""
    taken_s = []
    for index in range(min(count, _TIMED)):
        started_s = time.perf_counter()
        call(index)
        taken_s.append(time.perf_counter() - started_s)
    return 1e6 * median(taken_s)
