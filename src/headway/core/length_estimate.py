"""A predicted answer length with its uncertainty."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import exp, log
from statistics import NormalDist

_NORMAL = NormalDist()
TAIL = 0.1
"""Share of answers shorter than `low_tokens`, and of answers longer than `high_tokens`."""
_TAIL_Z = -_NORMAL.inv_cdf(TAIL)
_FAR_Z = 4.0
"""Beyond this many deviations the normal tail is replaced by an exponential one: its own quantiles lose precision."""
_LEAST_SPREAD = 0.02
"""Least deviation of the logarithm. With less, an answer that outgrows its estimate would be expected to end at
every token.
"""
_DOUBT = 0.01
"""Share of answers unrelated to their estimates: a model that repeats itself never ends."""
UNKNOWN_SPREAD = 2.0
"""Assumed factor either way for an estimate without an interval."""


@cache
def _middles_z(points: int) -> Sequence[float]:
    """The midpoints, in deviations, of this many equally likely parts of a normal variable."""
    return [_NORMAL.inv_cdf((part + 0.5) / points) for part in range(points)]


@dataclass(frozen=True, slots=True)
class LengthEstimate:
    """The output tokens of an answer: the median, and the bounds that one in ten lies below and above.

    The logarithm of the length is taken as normal, with its own spread on either side of the median.
    """

    tokens: float
    low_tokens: float
    high_tokens: float

    @classmethod
    def around(cls, tokens: float) -> LengthEstimate:
        """An estimate of which only the median is known."""
        return cls(tokens, max(1.0, tokens / UNKNOWN_SPREAD), tokens * UNKNOWN_SPREAD)

    def at(self, confidence: float) -> float:
        """Tokens that the answer stays within with this probability (0-1, exclusive)."""
        z = _NORMAL.inv_cdf(confidence)
        return self.tokens * exp(z * self._spread(longer=z > 0))

    @property
    def said_tokens(self) -> tuple[float, float, float]:
        """Median and bounds for a request's hints: at least one token each, since noise may put an estimate lower."""
        return (max(1.0, self.tokens), max(1.0, self.low_tokens), max(1.0, self.high_tokens))

    def pinball_tokens(self, output_tokens: int) -> float:
        """Mean pinball loss of the median and both bounds for an answer of this length; 0 if all three are exact.

        The expected loss is least for the true quantiles, so wide intervals and missed ones both cost. Source: Koenker
        and Bassett 1978, Regression quantiles.
        """
        ends = ((TAIL, self.low_tokens), (0.5, self.tokens), (1 - TAIL, self.high_tokens))
        return sum(max(q * (output_tokens - end), (1 - q) * (end - output_tokens)) for q, end in ends) / len(
            ends
        )

    def remaining_tokens(self, produced: int) -> float:
        """The median number of tokens still to come of an answer longer than `produced`, above 0.

        One answer in a hundred is assumed to be unrelated to its estimate. The farther an answer outgrows its estimate,
        the likelier it is one of those, of which as much is expected as it has already brought (the median if the
        chance of being longer than n falls as 1 / n). So a narrow, wrong interval does not make an endless answer look
        nearly done at every token.
        """
        if produced <= 0:
            return self.tokens
        longer = produced >= self.tokens
        reached_z = log(produced / self.tokens) / self._spread(longer=longer)
        if reached_z < _FAR_Z:
            middle_z = _NORMAL.inv_cdf((1.0 + _NORMAL.cdf(reached_z)) / 2.0)
        else:
            middle_z = reached_z + log(2.0) / reached_z
        to_come = self.tokens * exp(middle_z * self._spread(longer=middle_z > 0)) - produced
        if not longer:
            return to_come
        doubt = _DOUBT * self.tokens / produced
        doubt /= doubt + (1.0 - _DOUBT) * _NORMAL.cdf(-reached_z)
        return (1.0 - doubt) * to_come + doubt * produced

    def longer_than(self, produced: int, points: int) -> Sequence[float]:
        """Lengths of an answer longer than `produced`, ascending and equally likely.

        Returns those of `points` representative lengths that are longer: fewer as the answer grows, and none once it
        has outgrown its estimate. O(points) the first time, then O(log points).
        """
        lengths = _likely_lengths(self, points)
        return lengths[bisect_right(lengths, produced) :]

    def _spread(self, *, longer: bool) -> float:
        """Deviation of the logarithm above or below the median."""
        ratio = self.high_tokens / self.tokens if longer else self.tokens / self.low_tokens
        return max(log(ratio) / _TAIL_Z, _LEAST_SPREAD)


@lru_cache(maxsize=4096)
def _likely_lengths(estimate: LengthEstimate, points: int) -> Sequence[float]:
    """The midpoints of this many equally likely parts; cached, since each answer asks a dozen times."""
    above, below = estimate._spread(longer=True), estimate._spread(longer=False)
    return [estimate.tokens * exp(z * (above if z > 0 else below)) for z in _middles_z(points)]
