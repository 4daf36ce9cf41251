"""Durations counted in buckets, as Prometheus wants them."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

BOUNDS_S = (*(round(factor * 10.0**power, 6) for power in range(-3, 2) for factor in (1, 2, 5)), 100.0)
"""1, 2, 5, 10 ms ... 50, 100 s; what is longer is in a bucket of its own."""


@dataclass(slots=True)
class Histogram:
    """Counts by bucket, each up to and with its bound, and the sum. O(log buckets) a value."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    sum_s: float = 0.0

    def add(self, value_s: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_S, value_s)] += 1
        self.sum_s += value_s

    @property
    def count(self) -> int:
        """Durations counted so far."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """(bound as text, count at or below it), the last bound being +Inf."""
        found: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self.counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found
