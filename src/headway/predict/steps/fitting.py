"""Non-negative least squares, and errors of predictions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from headway.statistics import mean_of_known, median, quantile

Array: TypeAlias = npt.NDArray[np.float64]

_TOLERANCE = 1e-10


def nnls(matrix: Array, target: Array) -> Array:
    """The x >= 0 that minimises |matrix x - target|, by the active-set method.

    `matrix` is (rows, columns), `target` (rows,). Columns are scaled to unit length first, so features of any unit may
    be mixed. O(columns^4) at worst, meant for tens of columns. Source: Lawson and Hanson 1974, Solving Least Squares
    Problems, chapter 23.
    """
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    scaled = matrix / scale
    gram, moment = scaled.T @ scaled, scaled.T @ target
    size = len(scale)
    solution = np.zeros(size)
    free = np.zeros(size, dtype=bool)
    threshold = _TOLERANCE * max(1e-300, float(np.abs(moment).max(initial=0.0)))
    for _ in range(3 * size):
        gradient = moment - gram @ solution
        gradient[free] = -np.inf
        best = int(gradient.argmax())
        if free.all() or gradient[best] <= threshold:
            break
        free[best] = True
        solution = _feasible(gram, moment, solution, free)
    unscaled: Array = solution / scale
    return unscaled


def _feasible(gram: Array, moment: Array, start: Array, free: npt.NDArray[np.bool_]) -> Array:
    """Move from `start` towards the least squares of the free columns; those that reach 0 are bound again."""
    solution = start
    while free.any():
        wanted = np.zeros_like(solution)
        index = np.flatnonzero(free)
        wanted[index] = np.linalg.lstsq(gram[np.ix_(index, index)], moment[index], rcond=None)[0]
        negative = index[wanted[index] <= 0]
        if not len(negative):
            return wanted
        distance = solution[negative] - wanted[negative]
        reach = np.divide(solution[negative], distance, out=np.zeros_like(distance), where=distance > 0)
        solution = solution + float(reach.min()) * (wanted - solution)
        bound = negative[reach <= reach.min()]
        solution[bound] = 0.0
        free[bound] = False
    return solution


QUANTILES = 21
"""Number of residual quantiles: the least, the greatest and every 5 % between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Judged predictions. Errors are |measured / predicted - 1|, fractions.

    `residuals` are measured over predicted, ascending and equidistant; (1.0,) if there are none.
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


_RATIOS = 200
"""Ratios of measured to predicted seconds kept for the interval."""
_REFRESH = 16
"""New ratios after which the interval is recomputed."""
_OUTLIER_SPREADS = 4.0
_OUTLIERS_IN_A_ROW = 4
_LEAST_SPREAD = 0.01
TAIL = 0.05
"""Share of measurements outside each end of the interval."""


class UsualError:
    """The interval of measured over predicted, with measurements clipped to what is usual.

    A measurement far from its prediction, by the recent spread, counts as one at the edge of that spread, so a stall
    teaches little. From the fourth such in a row on one side it counts fully: the prediction is wrong. Nothing is
    clipped until 16 were seen. Memory is bounded: 200 ratios. O(1), and a sort of the ratios every 16.
    """

    def __init__(self) -> None:
        self.low = self.high = 1.0
        self._spread = 1.0
        self._ratios: deque[float] = deque(maxlen=_RATIOS)
        self._since_refresh = 0
        self._run_beyond = 0

    def note(self, expected_s: float, seconds: float) -> None:
        """Record a measurement and its prediction."""
        self._ratios.append(seconds / expected_s)
        self._since_refresh += 1
        if self._since_refresh >= _REFRESH or len(self._ratios) <= _REFRESH:
            self._refresh()

    def taken(self, expected_s: float, seconds: float) -> float:
        """The value to learn from a measurement, in seconds."""
        reach = _OUTLIER_SPREADS * self._spread * expected_s
        cut = min(max(seconds, expected_s - reach), expected_s + reach)
        side = (seconds > cut) - (seconds < cut)
        self._run_beyond = self._run_beyond + side if side * self._run_beyond >= 0 and side else side
        return seconds if abs(self._run_beyond) >= _OUTLIERS_IN_A_ROW else cut

    def _refresh(self) -> None:
        self._since_refresh = 0
        ratios = sorted(self._ratios)
        self.low, self.high = quantile(ratios, TAIL), quantile(ratios, 1 - TAIL)
        if len(ratios) >= _REFRESH:
            self._spread = max(_LEAST_SPREAD, median(abs(ratio - 1) for ratio in ratios))


def trust_in(ratios: list[float]) -> list[float]:
    """Trust in each of a few measurements, 0-1: less the farther it is from the usual error."""
    errors = [abs(ratio - 1) for ratio in ratios]
    limit = _OUTLIER_SPREADS / 2 * max(median(errors), _LEAST_SPREAD)
    return [min(1.0, limit / max(error, limit)) for error in errors]


def mape(pairs: Iterable[tuple[float, float]]) -> float | None:
    """Mean of |predicted / measured - 1| over pairs of measured and predicted seconds, a fraction; None for none.

    Source: AdaptiveLLM section 4.5 (mean absolute percentage error).
    """
    return mean_of_known(abs(predicted / measured - 1) for measured, predicted in pairs)
