"""How long an answer will probably be."""

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
"""Beyond so many deviations the normal tail is taken as exponential: its own quantiles lose their digits."""
_LEAST_SPREAD = 0.02
"""Of the logarithm. Below it an answer that outgrows its estimate would be expected to end at every token."""
_DOUBT = 0.01
"""Share of answers that have nothing to do with their estimates: a model that repeats itself never ends."""
UNKNOWN_SPREAD = 2.0
"""An estimate that came without an interval may be off by this factor either way."""


@cache
def _middles_z(points: int) -> Sequence[float]:
    """The deviations in the middles of so many equally likely parts of a normal variable."""
    return [_NORMAL.inv_cdf((part + 0.5) / points) for part in range(points)]


@dataclass(frozen=True, slots=True)
class LengthEstimate:
    """Output tokens of an answer: the median, and what one in ten stays below and one in ten exceeds.

    Between and beyond, the logarithm of the length is taken as normal, with a spread of its own on either side.
    """

    tokens: float
    low_tokens: float
    high_tokens: float

    @classmethod
    def around(cls, tokens: float) -> LengthEstimate:
        """An estimate of which nothing but its value is known."""
        return cls(tokens, max(1.0, tokens / UNKNOWN_SPREAD), tokens * UNKNOWN_SPREAD)

    def at(self, confidence: float) -> float:
        """Tokens that the answer stays within with this probability (0-1, exclusive)."""
        z = _NORMAL.inv_cdf(confidence)
        return self.tokens * exp(z * self._spread(longer=z > 0))

    @property
    def said_tokens(self) -> tuple[float, float, float]:
        """Median and both ends as a request's hints say them: noise may put an estimate below the least, one token."""
        return (max(1.0, self.tokens), max(1.0, self.low_tokens), max(1.0, self.high_tokens))

    def pinball_tokens(self, output_tokens: int) -> float:
        """Mean pinball loss of the median and both ends, for an answer of so many tokens; 0 for three that are right.

        Least in the mean for the true quantiles, so that wide and missed intervals both cost. Source: Koenker and
        Bassett 1978, Regression quantiles.
        """
        ends = ((TAIL, self.low_tokens), (0.5, self.tokens), (1 - TAIL, self.high_tokens))
        return sum(max(q * (output_tokens - end), (1 - q) * (end - output_tokens)) for q, end in ends) / len(
            ends
        )

    def remaining_tokens(self, produced: int) -> float:
        """Tokens still to come of an answer that is already longer than `produced`: the median, above 0.

        One answer in a hundred is taken to have nothing to do with its estimate. The farther an answer outgrows
        its estimate, the likelier it is that one, of which as much is expected as it has brought already (the
        median where the chance of being longer than n falls as 1 / n). So a narrow interval that was wrong does
        not make an answer that never ends look nearly done at every token.
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
        """Lengths of an answer that is already longer than `produced`, ascending and equally likely.

        Of `points` that stand for all it may have those that are longer: so the farther it comes, the fewer, and none
        for one that has outgrown its estimate. O(points) the first time, then O(log points).
        """
        lengths = _likely_lengths(self, points)
        return lengths[bisect_right(lengths, produced) :]

    def _spread(self, *, longer: bool) -> float:
        """Deviation of the logarithm above or below the median."""
        ratio = self.high_tokens / self.tokens if longer else self.tokens / self.low_tokens
        return max(log(ratio) / _TAIL_Z, _LEAST_SPREAD)


@lru_cache(maxsize=4096)
def _likely_lengths(estimate: LengthEstimate, points: int) -> Sequence[float]:
    """The lengths in the middles of so many equally likely parts. Each answer asks a dozen times in its life."""
    above, below = estimate._spread(longer=True), estimate._spread(longer=False)
    return [estimate.tokens * exp(z * (above if z > 0 else below)) for z in _middles_z(points)]
