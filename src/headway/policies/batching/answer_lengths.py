"""How long answers have been of late."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

from headway.errors import ConfigError

_SHARES = {"p50": 0.5, "p90": 0.9}
STATISTICS = ("mean", *_SHARES)
WINDOW = 1000
MOST_WINDOW = 1_000_000
"""Answers long past say nothing of late ones."""


class AnswerLengths:
    """The mean, the median or the 90th percentile of the last `window` finished answers; 0 before the first.

    O(1) for the mean; else O(log window) and one memmove an answer. Deterministic.
    """

    def __init__(self, statistic: str = "mean", window: int = WINDOW) -> None:
        if statistic not in STATISTICS:
            raise ConfigError(f"statistic is {statistic!r}; accepted: {', '.join(STATISTICS)}")
        if not 1 <= window <= MOST_WINDOW:
            raise ConfigError(f"window is {window}; accepted: 1 to {MOST_WINDOW:,} answers")
        self._share = _SHARES.get(statistic)
        self._lengths: deque[int] = deque(maxlen=window)
        self._ascending: list[int] = []
        self._sum = 0

    def add(self, output_tokens: int) -> None:
        """An answer came to its end."""
        if len(self._lengths) == self._lengths.maxlen:
            oldest = self._lengths[0]
            self._sum -= oldest
            if self._share is not None:
                del self._ascending[bisect_left(self._ascending, oldest)]
        self._lengths.append(output_tokens)
        self._sum += output_tokens
        if self._share is not None:
            insort(self._ascending, output_tokens)

    @property
    def expected_tokens(self) -> float:
        """How long an answer is expected to be."""
        count = len(self._lengths)
        if not count:
            return 0.0
        if self._share is None:
            return self._sum / count
        return self._ascending[min(count - 1, int(self._share * count))]
