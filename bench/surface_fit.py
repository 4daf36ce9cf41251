"""Fits `Surface`s: least squares on logarithms, outliers held back, and smooth where there are no rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from headway.predict.surface import Surface

Array: TypeAlias = npt.NDArray[np.float64]
Axes: TypeAlias = tuple[tuple[float, ...], ...]

_ROUNDS = 5
_OUTLIER = 0.07
"""Distance in log2 (5 %) beyond which a row weighs as 1/distance."""
_ROUGHNESS = 0.3
"""Weight of a bend between neighbouring knots, in rows: decides only where rows are few."""
_RIDGE = 1e-6
_DECIMALS = 3


def design(axes: Axes, points: Array) -> Array:
    """How much each knot has to do with each row: (rows, knots), multilinear in the logarithms."""
    matrix = np.ones((len(points), 1))
    for knots, column in zip(axes, np.log2(points).T, strict=True):
        hats = _hats(np.array(knots), column)
        matrix = (matrix[:, :, None] * hats[:, None, :]).reshape(len(points), -1)
    return matrix


def fit_surfaces(parts: Sequence[tuple[Axes, Array]], log2_ratio: Array) -> list[Surface]:
    """Surfaces whose product is nearest to the ratios; `parts` are axes with the rows' points on them."""
    matrix = np.hstack([design(axes, points) for axes, points in parts])
    smooth = _block_diagonal([_bends(axes) for axes, _ in parts])
    held = smooth.T @ smooth + _RIDGE * np.eye(matrix.shape[1])
    trust = np.ones(len(log2_ratio))
    found = np.zeros(matrix.shape[1])
    for _ in range(_ROUNDS):
        weighted = matrix * trust[:, None] ** 2
        solved = np.linalg.solve(matrix.T @ weighted + held, weighted.T @ log2_ratio)
        found = np.asarray(solved, dtype=np.float64)
        distance = np.abs(log2_ratio - matrix @ found)
        trust = np.sqrt(np.minimum(1.0, _OUTLIER / np.maximum(distance, _OUTLIER)))
    return _surfaces([axes for axes, _ in parts], found)


def _surfaces(all_axes: Sequence[Axes], found: Array) -> list[Surface]:
    surfaces, start = [], 0
    for axes in all_axes:
        size = int(np.prod([len(knots) for knots in axes]))
        values = tuple(round(float(value), _DECIMALS) + 0.0 for value in found[start : start + size])
        surfaces.append(Surface(axes=axes, values=values))
        start += size
    return surfaces


def _hats(knots: Array, where: Array) -> Array:
    if len(knots) == 1:
        return np.ones((len(where), 1))
    inside = np.clip(where, knots[0], knots[-1])
    left = np.clip(np.searchsorted(knots, inside, side="right") - 1, 0, len(knots) - 2)
    share = (inside - knots[left]) / (knots[left + 1] - knots[left])
    hats = np.zeros((len(where), len(knots)))
    rows = np.arange(len(where))
    hats[rows, left] = 1 - share
    hats[rows, left + 1] = share
    return hats


def _bends(axes: Axes) -> Array:
    """Second differences along every axis, (bends, knots)."""
    shape = [len(knots) for knots in axes]
    blocks = []
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        # Two knots have no bend; their difference is held instead.
        line = np.diff(np.eye(size), n=min(2, size - 1), axis=0)
        block = np.ones((1, 1))
        for other, length in enumerate(shape):
            factor = line if other == axis else np.eye(length)
            block = np.asarray(np.kron(block, factor), dtype=np.float64)
        blocks.append(_ROUGHNESS * block)
    return np.vstack(blocks) if blocks else np.zeros((0, int(np.prod(shape))))


def _block_diagonal(blocks: Sequence[Array]) -> Array:
    width = sum(block.shape[1] for block in blocks)
    rows, start = [], 0
    for block in blocks:
        row = np.zeros((len(block), width))
        row[:, start : start + block.shape[1]] = block
        rows.append(row)
        start += block.shape[1]
    return np.vstack(rows)
