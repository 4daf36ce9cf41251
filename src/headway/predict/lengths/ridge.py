"""Ridge regression, updated by one answer at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]


class OnlineRidge:
    """Weights of a linear model, with an independent normal prior of mean `weights` and these variances.

    Updated by recursive least squares. After `memory` answers that say nothing about a weight, it is as uncertain as at
    first, so old lessons give way to new ones. Source: Plackett 1950, Some theorems in least squares.
    """

    __slots__ = ("_drift", "covariance", "weights")

    def __init__(self, variances: Vector, memory: float, weights: Vector | None = None) -> None:
        self.weights = np.zeros(len(variances)) if weights is None else weights.copy()
        self.covariance = np.diag(variances)
        self._drift = variances / memory

    def predict(self, inputs: Vector) -> float:
        """The value at these inputs, (features,)."""
        return float(self.weights @ inputs)

    def observe(self, inputs: Vector, value: float, noise: float) -> None:
        """Learn from a value with this variance of noise. O(features squared)."""
        self.covariance.flat[:: len(self._drift) + 1] += self._drift
        gain = self.covariance @ inputs
        variance = noise + float(inputs @ gain)
        self.weights += gain * ((value - self.predict(inputs)) / variance)
        self.covariance -= np.outer(gain, gain / variance)


class LastErrors:
    """The last `SIZE` errors of predictions, each with the place (log prompt tokens) where it occurred."""

    SIZE = 200
    __slots__ = ("count", "errors", "places")

    def __init__(self) -> None:
        self.places = np.zeros(self.SIZE)
        self.errors = np.zeros(self.SIZE)
        self.count = 0

    def add(self, place: float, error: float) -> None:
        """Add an error; beyond SIZE the oldest is dropped."""
        index = self.count % self.SIZE
        self.places[index], self.errors[index] = place, error
        self.count += 1

    @property
    def known(self) -> tuple[Vector, Vector]:
        """Places and errors, in no order."""
        count = min(self.count, self.SIZE)
        return self.places[:count], self.errors[:count]


def weighted_quantiles(values: Vector, weights: Vector, shares: Sequence[float]) -> Vector:
    """The values below which these shares of the weight lie, interpolated between neighbours. O(n log n)."""
    order = np.argsort(values)
    ordered = weights[order]
    below = np.cumsum(ordered) - ordered / 2
    found: Vector = np.interp(np.asarray(shares) * ordered.sum(), below, values[order])
    return found
