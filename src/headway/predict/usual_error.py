"""How far measured seconds usually are from predicted ones, and what is an outlier among them."""

from __future__ import annotations

from collections import deque

from headway.predict.residuals import quantile

_RATIOS = 200
"""Ratios of measured to predicted seconds kept for the interval."""
_REFRESH = 16
"""New ratios after which the interval is computed anew."""
_OUTLIER_SPREADS = 4.0
_OUTLIERS_IN_A_ROW = 4
_LEAST_SPREAD = 0.01
TAIL = 0.05
"""Share of measurements outside each end of the interval."""


class UsualError:
    """The interval of measured over predicted, and measurements cut to the edge of what is usual.

    A measurement far from its prediction, by the spread of late, counts as one at the edge of that spread, so a stall
    teaches little, unless it is the fourth such in a row on one side: so many are no outliers, the prediction is wrong.
    Nothing is cut until 16 were seen. Memory is bounded: 200 ratios. O(1), and a sort of the ratios every 16.
    """

    def __init__(self) -> None:
        self.low = self.high = 1.0
        self._spread = 1.0
        self._ratios: deque[float] = deque(maxlen=_RATIOS)
        self._since_refresh = 0
        self._run_beyond = 0

    def note(self, expected_s: float, seconds: float) -> None:
        """A measurement, and what was predicted of it."""
        self._ratios.append(seconds / expected_s)
        self._since_refresh += 1
        if self._since_refresh >= _REFRESH or len(self._ratios) <= _REFRESH:
            self._refresh()

    def taken(self, expected_s: float, seconds: float) -> float:
        """What to learn from a measurement, in seconds."""
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
            self._spread = max(_LEAST_SPREAD, quantile(sorted(abs(ratio - 1) for ratio in ratios), 0.5))


def trust_in(ratios: list[float]) -> list[float]:
    """How much each of a few measurements is to be trusted, 0-1: less the farther it is from the usual error."""
    errors = [abs(ratio - 1) for ratio in ratios]
    limit = _OUTLIER_SPREADS / 2 * max(quantile(sorted(errors), 0.5), _LEAST_SPREAD)
    return [min(1.0, limit / max(error, limit)) for error in errors]
