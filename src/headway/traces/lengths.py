"""Length laws: how many tokens a prompt or an answer has."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import erfc, exp, isfinite, log, sqrt
from typing import Protocol, Self

import numpy as np

from headway.errors import ConfigError

MAX_TOKENS = 10_000_000
"""No law goes beyond: a larger number is a mistake, and Zipf keeps one weight for each length."""

FIT_TOLERANCE = 1e-4
"""How near, relative to it, `LogNormal.fitted` comes to the mean it is given."""

MAX_SIGMA = 10.0
"""A log-normal law this wide already spans 17 powers of ten between its 2.5 % and 97.5 % points."""

NEGLIGIBLE = 1e-12
"""Probability below which the tail of a mean is no longer summed."""


class LengthLaw(Protocol):
    """Draws lengths in tokens, each 1 or more."""

    def sample(self, count: int, rng: np.random.Generator) -> list[int]:
        """`count` independent lengths; from generators in the same state, fewer begin more."""
        ...

    def expected_tokens(self) -> float:
        """The mean of what `sample` draws, limits and rounding included."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """Always the same length."""

    tokens: int

    def __post_init__(self) -> None:
        _require_tokens("tokens", self.tokens)

    def sample(self, count: int, rng: np.random.Generator) -> list[int]:
        """As `LengthLaw.sample`; nothing is drawn."""
        return [self.tokens] * count

    def expected_tokens(self) -> float:
        """As `LengthLaw.expected_tokens`."""
        return float(self.tokens)


@dataclass(frozen=True, slots=True)
class Zipf:
    """P(k) ~ k^-theta on 1..maximum: a larger theta is more skewed and shorter.

    Source: Wu et al. 2023, arXiv:2305.05920 (FastServe).
    """

    theta: float
    maximum: int

    def __post_init__(self) -> None:
        if not (isfinite(self.theta) and self.theta >= 0):
            raise ConfigError(f"theta is {self.theta}; accepted: a finite number, 0 or more")
        _require_tokens("maximum", self.maximum)

    def sample(self, count: int, rng: np.random.Generator) -> list[int]:
        """As `LengthLaw.sample`."""
        reached = np.cumsum(self._weights())
        places = np.searchsorted(reached, rng.random(count) * reached[-1], side="right")
        return [int(place) + 1 for place in places]

    def expected_tokens(self) -> float:
        """As `LengthLaw.expected_tokens`."""
        weights = self._weights()
        return float(weights @ np.arange(1, self.maximum + 1) / weights.sum())

    def _weights(self) -> np.ndarray:
        weights: np.ndarray = np.exp(-self.theta * np.log(np.arange(1, self.maximum + 1)))
        return weights


@dataclass(frozen=True, slots=True)
class LogNormal:
    """exp(N(mu, sigma)), rounded and clipped to minimum..maximum; `mean` is that of exp(N) itself.

    mu = ln(mean) - sigma^2 / 2, so the mean is exact before clipping and lower after it;
    `LogNormal.fitted` makes it right after clipping.
    """

    mean: float
    sigma: float
    maximum: int
    minimum: int = 1

    def __post_init__(self) -> None:
        if not (isfinite(self.mean) and self.mean > 0):
            raise ConfigError(f"mean is {self.mean}; accepted: a finite number above 0")
        if not 0 < self.sigma <= MAX_SIGMA:
            raise ConfigError(f"sigma is {self.sigma}; accepted: above 0, up to {MAX_SIGMA:g}")
        _require_tokens("minimum", self.minimum)
        _require_tokens("maximum", self.maximum)
        if self.minimum > self.maximum:
            raise ConfigError(f"minimum is {self.minimum}; accepted: maximum ({self.maximum}) or less")

    @classmethod
    def fitted(cls, mean: float, sigma: float, maximum: int, minimum: int = 1) -> Self:
        """The law whose `expected_tokens` is `mean`, within FIT_TOLERANCE of it; found by bisection.

        Raises ConfigError for a mean outside minimum..maximum, which no clipped law has, and for a `sigma` so small
        that all lengths are one whole number or the next, and no float is exact enough for the mean between them.
        """
        law = cls(mean, sigma, maximum, minimum)
        if not minimum < mean < maximum:
            raise ConfigError(f"mean is {mean}; accepted: between {minimum} and {maximum}, both excluded")
        spread = 10 * sigma + sigma**2  # beyond it practically every length is clipped to one limit
        low, high = log(minimum) - spread, log(maximum) + spread
        while abs(law.expected_tokens() - mean) > FIT_TOLERANCE * mean:
            middle = (low + high) / 2
            if not low < middle < high:
                raise ConfigError(f"sigma is {sigma}, with which no law has a mean of {mean}; accepted: more")
            law = cls(exp(middle), sigma, maximum, minimum)
            low, high = (middle, high) if law.expected_tokens() < mean else (low, middle)
        return law

    def sample(self, count: int, rng: np.random.Generator) -> list[int]:
        """As `LengthLaw.sample`."""
        # Clipped before exp as well, so that a wide law cannot overflow.
        logs = np.minimum(rng.normal(self._mu(), self.sigma, count), log(self.maximum))
        tokens = np.clip(np.floor(np.exp(logs) + 0.5), self.minimum, self.maximum)
        return [int(length) for length in tokens]

    def expected_tokens(self) -> float:
        """As `LengthLaw.expected_tokens`; cost O(maximum)."""
        mu, width = self._mu(), self.sigma * sqrt(2)
        total = float(self.minimum)
        for tokens in range(self.minimum, self.maximum):
            beyond = 0.5 * erfc((log(tokens + 0.5) - mu) / width)  # P(rounded length > tokens)
            if beyond < NEGLIGIBLE:
                break
            total += beyond
        return total

    def _mu(self) -> float:
        return log(self.mean) - self.sigma**2 / 2


@dataclass(frozen=True, slots=True)
class Empirical:
    """Lengths that were seen, drawn again with replacement (the bootstrap)."""

    values: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ConfigError("values is empty; accepted: one length or more")
        for value in self.values:
            _require_tokens("a length of values", value)

    def sample(self, count: int, rng: np.random.Generator) -> list[int]:
        """As `LengthLaw.sample`."""
        return [self.values[place] for place in rng.integers(len(self.values), size=count)]

    def expected_tokens(self) -> float:
        """As `LengthLaw.expected_tokens`."""
        return sum(self.values) / len(self.values)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A table of (probability, length), straight between its points and rounded.

    `table` rises in probability from 0 to 1 and never falls in length.
    """

    table: tuple[tuple[float, int], ...]

    def __post_init__(self) -> None:
        if len(self.table) < 2 or self.table[0][0] != 0 or self.table[-1][0] != 1:
            raise ConfigError(f"table is {self.table}; accepted: points from probability 0 to 1")
        for (p, tokens), (next_p, next_tokens) in pairwise(self.table):
            if not (p < next_p and tokens <= next_tokens):
                raise ConfigError(
                    f"({next_p}, {next_tokens}) follows ({p}, {tokens}); accepted: rising points"
                )
        for _, tokens in self.table:
            _require_tokens("a length of table", tokens)

    def up_to(self, maximum: int) -> Self:
        """The same law given that a length is `maximum` or less; ConfigError if that is below all or above."""
        shortest, longest = self.table[0][1], self.table[-1][1]
        if not shortest < maximum < longest:
            raise ConfigError(
                f"maximum is {maximum}; accepted: between {shortest} and {longest}, both excluded"
            )
        probabilities, tokens = zip(*self.table, strict=True)
        share = float(np.interp(maximum, tokens, probabilities))
        kept = [(probability / share, length) for probability, length in self.table if length < maximum]
        return type(self)((*kept, (1.0, maximum)))

    def sample(self, count: int, rng: np.random.Generator) -> list[int]:
        """As `LengthLaw.sample`."""
        probabilities, tokens = zip(*self.table, strict=True)
        return [int(length) for length in np.rint(np.interp(rng.random(count), probabilities, tokens))]

    def expected_tokens(self) -> float:
        """As `LengthLaw.expected_tokens`, but for rounding: right within half a token."""
        return sum((q - p) * (low + high) / 2 for (p, low), (q, high) in pairwise(self.table))


def _require_tokens(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_TOKENS:
        raise ConfigError(f"{name} is {value!r}; accepted: a whole number from 1 to {MAX_TOKENS}")
