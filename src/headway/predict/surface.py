"""A smooth correction over a few axes, kept as numbers at knots."""

from __future__ import annotations

from bisect import bisect_right
from math import log2

import msgspec


class Surface(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A positive factor that depends on one to three positive quantities.

    Knots and values are base-2 logarithms, values in row-major order of the axes. Between knots the
    logarithm is linear in the logarithms, beyond them it is constant.
    """

    axes: tuple[tuple[float, ...], ...]
    values: tuple[float, ...]

    def at(self, *point: float) -> float:
        """The factor at `point`, one quantity an axis. About 1 us for two axes, 5 us for three."""
        if len(self.axes) == 2:
            return self._on_plane(*point)
        corners = [(0, 1.0)]
        for knots, quantity in zip(self.axes, point, strict=True):
            left, share = _place(knots, log2(quantity))
            size = len(knots)
            if share:
                corners = [
                    (index * size + left + step, weight * part)
                    for index, weight in corners
                    for step, part in ((0, 1.0 - share), (1, share))
                ]
            else:
                corners = [(index * size + left, weight) for index, weight in corners]
        values = self.values
        return float(2.0 ** sum(values[index] * weight for index, weight in corners))

    def _on_plane(self, first: float, second: float) -> float:
        """The same over two axes, as the simulator's clock asks for it."""
        rows, columns = self.axes
        row, down = _place(rows, log2(first))
        column, right = _place(columns, log2(second))
        values, start = self.values, row * len(columns) + column
        low = values[start] + right * (values[start + 1] - values[start]) if right else values[start]
        if not down:
            return float(2.0**low)
        start += len(columns)
        high = values[start] + right * (values[start + 1] - values[start]) if right else values[start]
        return float(2.0 ** (low + down * (high - low)))


def _place(knots: tuple[float, ...], where: float) -> tuple[int, float]:
    """The knot at or left of `where`, and the share of the next one; 0 beyond the ends."""
    if where <= knots[0]:
        return 0, 0.0
    if where >= knots[-1]:
        return len(knots) - 1, 0.0
    left = bisect_right(knots, where) - 1
    return left, (where - knots[left]) / (knots[left + 1] - knots[left])
