"""How long answers are of late, for those that nobody predicted."""

from __future__ import annotations

from math import exp, log, sqrt

from headway.core.length_estimate import UNKNOWN_SPREAD, LengthEstimate

_RECENT_ANSWERS = 400
"""Finished answers after which each counts for half, so that what is usual follows the traffic."""
_TELLING_ANSWERS = 5
"""Finished answers before which they say nothing of how unlike they are."""
_TAIL_Z = 1.2816
"""Deviations beyond which one in ten lies."""
_LEAST_SPREAD = 1.1
_MOST_SPREAD = 3.0
"""The wider the interval, the sooner newcomers go before those that run, as in feedback queues: better where memory is
ample, and worse by half where it is short, since who makes way has its KV moved (adr/0023)."""


class UsualLength:
    """The length of answers of late as one estimate: around their mean, as wide as their logarithms deviate, up to
    _MOST_SPREAD either way.

    The mean, since that is what a server that knows nothing else pays on average. The more unlike answers are, the more
    is expected of one that has brought much already. Until five have ended the interval is a factor of two. O(1); asked
    many times between two ends, it remembers.
    """

    def __init__(self) -> None:
        self._count = 0.0
        self._tokens = 0.0
        self._logs = 0.0
        self._squares = 0.0
        self._estimate: LengthEstimate | None = None

    def learn(self, tokens: int) -> None:
        """An answer came to its end with so many tokens."""
        if self._count >= _RECENT_ANSWERS:
            self._count, self._tokens = self._count / 2, self._tokens / 2
            self._logs, self._squares = self._logs / 2, self._squares / 2
        logarithm = log(max(1, tokens))
        self._count += 1
        self._tokens += max(1, tokens)
        self._logs += logarithm
        self._squares += logarithm * logarithm
        self._estimate = None

    @property
    def estimate(self) -> LengthEstimate | None:
        """What to expect of an answer; None before the first has ended."""
        if self._estimate is None and self._count:
            mean = self._tokens / self._count
            self._estimate = LengthEstimate(mean, mean / self._spread, mean * self._spread)
        return self._estimate

    @property
    def _spread(self) -> float:
        """The factor either way beyond which one in ten lies."""
        if self._count < _TELLING_ANSWERS:
            return UNKNOWN_SPREAD
        mean_log = self._logs / self._count
        deviation = sqrt(max(0.0, self._squares / self._count - mean_log * mean_log))
        return min(max(_LEAST_SPREAD, exp(_TAIL_Z * deviation)), _MOST_SPREAD)
