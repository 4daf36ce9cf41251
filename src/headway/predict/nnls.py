"""Least squares without negative coefficients."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]

_TOLERANCE = 1e-10


def nnls(matrix: Array, target: Array) -> Array:
    """The x >= 0 that makes |matrix x - target| least, by the active-set method.

    `matrix` is (rows, columns), `target` (rows,). Columns are scaled to unit length first, so features of
    any unit may be mixed. O(columns^4) at worst, meant for tens of columns.
    Source: Lawson and Hanson 1974, Solving Least Squares Problems, chapter 23.
    """
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    scaled = matrix / scale
    gram, moment = scaled.T @ scaled, scaled.T @ target
    size = len(scale)
    solution = np.zeros(size)
    free = np.zeros(size, dtype=bool)
    threshold = _TOLERANCE * max(1e-300, float(np.abs(moment).max(initial=0.0)))
    for _ in range(3 * size):
        gradient = moment - gram @ solution
        gradient[free] = -np.inf
        best = int(gradient.argmax())
        if free.all() or gradient[best] <= threshold:
            break
        free[best] = True
        solution = _feasible(gram, moment, solution, free)
    unscaled: Array = solution / scale
    return unscaled


def _feasible(gram: Array, moment: Array, start: Array, free: npt.NDArray[np.bool_]) -> Array:
    """Walk from `start` towards the least squares of the free columns; those that reach 0 are bound again."""
    solution = start
    while free.any():
        wanted = np.zeros_like(solution)
        index = np.flatnonzero(free)
        wanted[index] = np.linalg.lstsq(gram[np.ix_(index, index)], moment[index], rcond=None)[0]
        negative = index[wanted[index] <= 0]
        if not len(negative):
            return wanted
        distance = solution[negative] - wanted[negative]
        reach = np.divide(solution[negative], distance, out=np.zeros_like(distance), where=distance > 0)
        solution = solution + float(reach.min()) * (wanted - solution)
        bound = negative[reach <= reach.min()]
        solution[bound] = 0.0
        free[bound] = False
    return solution
