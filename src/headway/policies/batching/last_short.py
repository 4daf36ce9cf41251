"""The largest number that is not too long yet."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable


def last_short(most: int, too_long: Callable[[int], bool]) -> int:
    """The largest number up to `most` that is not too long, 0 if none; the more, the longer. O(log most) asked."""
    if most <= 0 or not too_long(most):
        return max(0, most)
    return max(0, bisect_left(range(most), True, key=too_long) - 1)
