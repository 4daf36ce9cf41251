"""Length laws: the tokens of a prompt or an answer, and the laws of published workloads."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import erfc, exp, isfinite, log, sqrt
from typing import NamedTuple, Protocol, Self

import numpy as np

from headway.errors import ConfigError

MAX_TOKENS = 10_000_000
"""Longest length of a law: a larger number is a mistake, and Zipf keeps one weight for each length."""

FIT_TOLERANCE = 1e-4
"""Relative deviation allowed between the mean of `LogNormal.fitted` and the given one."""

MAX_SIGMA = 10.0
"""A log-normal law this wide already spans 17 powers of ten between its 2.5 % and 97.5 % points."""

NEGLIGIBLE = 1e-12
"""Probability below which the tail of a mean is no longer summed."""


class LengthLaw(Protocol):
    """Draws lengths in tokens, each 1 or more."""

    def sample(self, count: int, rng: np.random.Generator) -> list[int]:
        """`count` independent lengths; with generators in equal states, a shorter list begins a longer one."""
        ...

    def expected_tokens(self) -> float:
        """The mean of what `sample` draws, including limits and rounding."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """Always the same length."""

    tokens: int

    def __post_init__(self) -> None:
        _require_tokens("tokens", self.tokens)

    def sample(self, count: int, rng: np.random.Generator) -> list[int]:
        """See `LengthLaw.sample`; not random."""
        return [self.tokens] * count

    def expected_tokens(self) -> float:
        """See `LengthLaw.expected_tokens`."""
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
            raise ConfigError.of("theta", self.theta, "a finite number, 0 or more")
        _require_tokens("maximum", self.maximum)

    def sample(self, count: int, rng: np.random.Generator) -> list[int]:
        """See `LengthLaw.sample`."""
        reached = np.cumsum(self._weights())
        places = np.searchsorted(reached, rng.random(count) * reached[-1], side="right")
        return [int(place) + 1 for place in places]

    def expected_tokens(self) -> float:
        """See `LengthLaw.expected_tokens`."""
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
            raise ConfigError.of("mean", self.mean, "a finite number above 0")
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
        """See `LengthLaw.sample`."""
        # Clipped before exp as well, so that a wide law cannot overflow.
        logs = np.minimum(rng.normal(self._mu(), self.sigma, count), log(self.maximum))
        tokens = np.clip(np.floor(np.exp(logs) + 0.5), self.minimum, self.maximum)
        return [int(length) for length in tokens]

    def expected_tokens(self) -> float:
        """See `LengthLaw.expected_tokens`; cost O(maximum)."""
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
class Quantiles:
    """A table of (probability, length), interpolated linearly and rounded.

    `table` rises in probability from 0 to 1 and never falls in length.
    """

    table: tuple[tuple[float, int], ...]

    def __post_init__(self) -> None:
        if len(self.table) < 2 or self.table[0][0] != 0 or self.table[-1][0] != 1:
            raise ConfigError.of("table", self.table, "points from probability 0 to 1")
        for (p, tokens), (next_p, next_tokens) in pairwise(self.table):
            if not (p < next_p and tokens <= next_tokens):
                raise ConfigError(
                    f"({next_p}, {next_tokens}) follows ({p}, {tokens}); accepted: rising points"
                )
        for _, tokens in self.table:
            _require_tokens("a length of table", tokens)

    def up_to(self, maximum: int) -> Self:
        """This law, given that a length is at most `maximum`. Raises ConfigError if that is below all lengths or
        above all.
        """
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
        """See `LengthLaw.sample`."""
        probabilities, tokens = zip(*self.table, strict=True)
        return [int(length) for length in np.rint(np.interp(rng.random(count), probabilities, tokens))]

    def expected_tokens(self) -> float:
        """See `LengthLaw.expected_tokens`, except for rounding: exact within half a token."""
        return sum((q - p) * (low + high) / 2 for (p, low), (q, high) in pairwise(self.table))


def _require_tokens(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_TOKENS:
        raise ConfigError(f"{name} is {value!r}; accepted: a whole number from 1 to {MAX_TOKENS}")


class LengthPair(NamedTuple):
    """The laws of a workload's prompts and answers, drawn independently."""

    input: LengthLaw
    output: LengthLaw


PROBABILITIES = (0, 0.01, *(step / 20 for step in range(1, 20)), 0.975, 0.99, 0.995, 0.999, 1)
"""Probabilities of the tables below: every 5 %, and closer in the tails."""


def _quantiles(*tokens: int) -> Quantiles:
    return Quantiles(tuple(zip(PROBABILITIES, tokens, strict=True)))


# Each table's comment says what was counted, its true mean, and how far the table is from it: in the mean,
# and at most in the share of lengths up to any given one (Kolmogorov-Smirnov distance).

# First turns of 8,000 ShareGPT conversations, Llama-2 tokens, as in Vidur's length set (MIT; counts only).
_SHAREGPT_INPUT = _quantiles(  # mean 247.1; +1.5 %, 0.007
    1, 2, 6, 9, 11, 13, 15, 18, 21, 24, 29, 35, 44, 55, 73, 101, 143, 230, 395, 768, 1432, 2132, 2880,
    3293, 3742, 3973
)  # fmt: skip
_SHAREGPT_OUTPUT = _quantiles(  # mean 326.4; +0.3 %, 0.011
    3, 10, 23, 44, 77, 107, 138, 168, 202, 232, 260, 287, 314, 340, 370, 404, 447, 503, 573, 684, 844,
    937, 1000, 1042, 1125, 1346
)  # fmt: skip

# 24,584 turns of ShareGPT conversations, each a prompt with all that was said before it, of up to 8,192 Llama-2 tokens
# with its answer (project-etalon, counts only).
_SHAREGPT_TURNS_INPUT = _quantiles(  # mean 2344.4; +0.2 %, 0.008
    1, 12, 29, 74, 183, 386, 585, 781, 976, 1204, 1456, 1733, 2060, 2404, 2801, 3240, 3738, 4291,
    4938, 5706, 6573, 7074, 7435, 7628, 7884, 8141
)  # fmt: skip
_SHAREGPT_TURNS_OUTPUT = _quantiles(  # mean 436.4; +0.1 %, 0.004
    2, 8, 44, 83, 129, 179, 227, 269, 309, 343, 377, 411, 448, 488, 530, 577, 625, 681, 752, 831, 919,
    966, 998, 1011, 1021, 1024
)  # fmt: skip

# 22,605 arXiv papers with their abstracts, 4,096 Llama-2 tokens together at most, as in Vidur's length set (MIT).
# Drawn independently of each other, as here, both together can be more.
_ARXIV_INPUT = _quantiles(  # mean 2580.9; -0.1 %, 0.004
    1, 73, 736, 1226, 1555, 1795, 1979, 2144, 2303, 2447, 2589, 2720, 2850, 2985, 3115, 3241, 3365,
    3484, 3591, 3701, 3813, 3877, 3935, 3963, 4015, 4054
)  # fmt: skip
_ARXIV_OUTPUT = _quantiles(  # mean 294.8; +1.6 %, 0.019
    5, 36, 60, 78, 92, 104, 115, 125, 135, 145, 156, 167, 179, 192, 206, 222, 242, 269, 305, 374, 758,
    2568, 3297, 3603, 3872, 4056
)  # fmt: skip

# First 75 % (15,460 requests) of the Azure LLM inference trace 2023, conversation (CC BY 4.0).
# Source: Patel et al. 2024 (Splitwise), ISCA 2024.
_AZURE_INPUT = _quantiles(  # mean 1180.4; +1.1 %, 0.046
    2, 30, 181, 212, 374, 386, 395, 402, 410, 436, 964, 1014, 1042, 1068, 1096, 1133, 1203, 1321, 2066,
    3837, 4085, 4093, 4127, 4179, 5936, 14050
)  # fmt: skip
_AZURE_OUTPUT = _quantiles(  # mean 201.2; +1.1 %, 0.021
    7, 16, 40, 51, 62, 73, 81, 87, 92, 98, 104, 115, 134, 159, 192, 375, 393, 397, 410, 421, 448, 520,
    599, 643, 939, 1000
)  # fmt: skip

# Answers of ChatGPT to 3,600 user queries in HaluEval (MIT), one token a word or punctuation mark.
_CHAT_OUTPUT = _quantiles(  # mean 101.8; +0.2 %, 0.005
    21, 26, 33, 41, 49, 57, 64, 73, 80, 87, 94, 100, 107, 113, 119, 126, 133, 141, 150, 161, 176, 197,
    234, 254, 306, 417
)  # fmt: skip

# 793 summaries of meeting passages in QMSum (MIT), one token a word or punctuation mark.
_SUMMARY_OUTPUT = _quantiles(  # mean 70.6; +0.1 %, 0.013
    15, 21, 31, 36, 39, 44, 47, 51, 55, 59, 62, 67, 71, 75, 79, 84, 88, 95, 102, 108, 125, 145, 163, 169,
    190, 190
)  # fmt: skip

ADAPTIVELLM_MAX_INPUT_TOKENS = 1024

# The spread of the inputs is chosen, not published: it puts the 99th percentile at 4.5 times the median for
# chat prompts (4.7 in HaluEval) and at 3.2 times for texts to summarise (3.0 in dialogues of DialogSum).
_CHAT_SIGMA = 0.65
_SUMMARY_SIGMA = 0.5


def _adaptivellm_input(mean: float, sigma: float) -> LogNormal:
    return LogNormal.fitted(mean, sigma, ADAPTIVELLM_MAX_INPUT_TOKENS)


NAMED_LAWS: dict[str, LengthPair] = {
    "sharegpt": LengthPair(_SHAREGPT_INPUT, _SHAREGPT_OUTPUT),
    "sharegpt-turns": LengthPair(_SHAREGPT_TURNS_INPUT, _SHAREGPT_TURNS_OUTPUT),
    "arxiv-summarization": LengthPair(_ARXIV_INPUT, _ARXIV_OUTPUT),
    "azure-conversation": LengthPair(_AZURE_INPUT, _AZURE_OUTPUT),
    "sharegpt-1024": LengthPair(_SHAREGPT_INPUT.up_to(1024), _SHAREGPT_OUTPUT),
    "adaptivellm-chatbot": LengthPair(_adaptivellm_input(17.02, _CHAT_SIGMA), _CHAT_OUTPUT),
    "adaptivellm-alpaca": LengthPair(_adaptivellm_input(19.66, _CHAT_SIGMA), _CHAT_OUTPUT),
    "adaptivellm-summary": LengthPair(_adaptivellm_input(340.48, _SUMMARY_SIGMA), _SUMMARY_OUTPUT),
}
"""Laws by name. `sharegpt` (first turns), `sharegpt-turns` (any turn, with its history), `arxiv-summarization` and
`azure-conversation` are quantile tables of the data they are named after; `sharegpt-1024` is of prompts of 1,024
tokens or fewer, as FastServe's released code takes the same data.

The inputs of AdaptiveLLM's three data sets are log-normal on 1..1024 with the published means 17.02, 19.66
and 340.48, met within `lengths.FIT_TOLERANCE`; their outputs are chat answers and meeting summaries.
"""
