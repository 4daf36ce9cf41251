"""How sure a mean of few samples is: Student's intervals, and of differences sample by sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from statistics import fmean, stdev

STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""The 97.5th percentile of Student's law with 1, 2, ... degrees of freedom."""

_NORMAL = 1.95996


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % confidence interval; infinitely wide where there is one sample."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """Of samples, at least one, that vary independently."""
        mean = fmean(values)
        half = half_width(values)
        return cls(mean, mean - half, mean + half)

    @property
    def half(self) -> float:
        """How far either end is from the mean."""
        return self.high - self.mean


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % confidence interval of their mean."""
    if len(values) < 2:
        return inf
    return student_t(len(values) - 1) * stdev(values) / sqrt(len(values))


def student_t(freedom: int) -> float:
    """The 97.5th percentile of Student's law.

    Above ten degrees of freedom by the first three terms of its expansion, within 0.001.
    Source: Abramowitz and Stegun 1964, 26.7.5.
    """
    if freedom <= len(STUDENT_T):
        return STUDENT_T[freedom - 1]
    z = _NORMAL
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def difference(values: Sequence[float], reference: Sequence[float]) -> Interval:
    """How much more `values` are than `reference`, sample by sample, so that what both share cancels out."""
    return Interval.of([value - other for value, other in zip(values, reference, strict=True)])
