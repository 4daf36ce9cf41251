"""What grew in the last minutes: running totals, sampled now and then."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Hashable, Mapping
from itertools import pairwise
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Totals = tuple[int, ...]


class Recent(Generic[Key]):
    """Samples of running totals by key, none older than `keep_s` but the one that the oldest window starts from.

    A key may join at any time: it was at zero before. Totals only grow, and all have `width` numbers. However often
    samples come, those that are kept lie `spacing_s` apart, but for the newest; keys whose totals stand still share
    one tuple between them. O(keys) a sample.
    """

    def __init__(self, width: int, keep_s: float, spacing_s: float = 0.5) -> None:
        self._zero: Totals = (0,) * width
        self._keep_s = keep_s
        self._spacing_s = spacing_s
        self._times_s: deque[float] = deque()
        self._samples: deque[dict[Key, Totals]] = deque()
        self._edges: dict[tuple[float, int], list[dict[Key, Totals]]] = {}

    def add(self, now_s: float, totals: Mapping[Key, Totals]) -> None:
        """Take the totals as they are now. Times do not fall."""
        self._edges.clear()
        last = self._samples[-1] if self._samples else {}
        sample = {key: last[key] if last.get(key) == value else value for key, value in totals.items()}
        if len(self._times_s) > 1 and now_s - self._times_s[-2] < self._spacing_s:
            self._times_s.pop()
            self._samples.pop()
        self._times_s.append(now_s)
        self._samples.append(sample)
        while len(self._times_s) > 1 and self._times_s[1] <= now_s - self._keep_s:
            self._times_s.popleft()
            self._samples.popleft()

    def span_s(self, window_s: float) -> float:
        """How much of the last `window_s` there are samples of: less at first, 0 before the second sample."""
        if not self._times_s:
            return 0.0
        return min(window_s, self._times_s[-1] - self._times_s[0])

    def growth(self, key: Key, window_s: float) -> Totals:
        """By how much a key's totals grew in the last `window_s`, or in the time there is."""
        return self.series(key, window_s, 1)[0]

    def series(self, key: Key, step_s: float, steps: int) -> list[Totals]:
        """The growth in each of the last `steps` times `step_s`, oldest first; zeros where there was no sample."""
        found = [sample.get(key, self._zero) for sample in self._at_edges(step_s, steps)]
        return [self._growth(earlier, later) for earlier, later in pairwise(found)]

    def _growth(self, earlier: Totals, later: Totals) -> Totals:
        if earlier is later:
            return self._zero
        return tuple(after - before for before, after in zip(earlier, later, strict=True))

    def _at_edges(self, step_s: float, steps: int) -> list[dict[Key, Totals]]:
        """The newest sample at or before each edge between the steps; before the first sample, the first.

        The same for every key, so it is looked up once after each sample.
        """
        if not self._times_s:
            return [{}] * (steps + 1)
        edges = self._edges.get((step_s, steps))
        if edges is None:
            times_s, now_s = list(self._times_s), self._times_s[-1]
            before = (bisect_right(times_s, now_s - step_s * back) - 1 for back in range(steps, -1, -1))
            edges = self._edges[step_s, steps] = [self._samples[max(0, index)] for index in before]
        return edges
