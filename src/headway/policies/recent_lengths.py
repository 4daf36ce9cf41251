"""Lengths of the last answers."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque


class RecentLengths:
    """The lengths of the last `window` answers. An answer costs O(log window) and one memmove."""

    def __init__(self, window: int) -> None:
        self._latest: deque[int] = deque(maxlen=window)
        self._sum = 0
        self.ascending: list[int] = []

    def __len__(self) -> int:
        return len(self._latest)

    def add(self, tokens: int) -> None:
        """An answer ended by itself with this many tokens."""
        if len(self._latest) == self._latest.maxlen:
            oldest = self._latest[0]
            self._sum -= oldest
            del self.ascending[bisect_left(self.ascending, oldest)]
        self._latest.append(tokens)
        self._sum += tokens
        insort(self.ascending, tokens)

    @property
    def mean(self) -> float:
        """The mean length; at least one answer must have ended."""
        return self._sum / len(self._latest)

    def at(self, share: float) -> int:
        """The length at this share of them in ascending order; at least one answer must have ended."""
        return self.ascending[min(len(self._latest) - 1, int(share * len(self._latest)))]
