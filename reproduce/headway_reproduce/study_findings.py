"""What a paper's runs came to: means over seeds, and policies against policies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Generic, Protocol, TypeVar

from headway.errors import SimulationError
from headway_reproduce.study_runs import KeptRuns, RunResult, StudyRun

Number = Callable[[RunResult], float | None]
"""What is asked of a run; None where it has no such value."""

_DIGITS = 4


def throughput_rps(result: RunResult) -> float | None:
    """Requests a second."""
    return result.summary.throughput_rps


def summary_key(key: str) -> Number:
    """The number that a summary has under a key."""

    def value(result: RunResult) -> float | None:
        found: float | None = getattr(result.summary, key)
        return found

    return value


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean over seeds, and the standard deviation where there are several."""

    mean: float
    deviation: float | None


def spread(values: Iterable[float | None]) -> Spread | None:
    """Of values that are all there; None where one is missing, or there are none."""
    found = list(values)
    whole = [value for value in found if value is not None]
    if not whole or len(whole) < len(found):
        return None
    return Spread(fmean(whole), stdev(whole) if len(whole) > 1 else None)


def ratio(mine: float | None, theirs: float | None) -> float | None:
    """One number over another, where both are there."""
    return mine / theirs if mine is not None and theirs else None


def short(value: float | None) -> float | None:
    """As it is written for scripts."""
    return None if value is None else round(value, _DIGITS)


class StudyPoint(Protocol):
    """One setting that policies are compared at."""

    def run(self, policy: str, seed: int) -> StudyRun:
        """This setting under one policy."""
        ...


PointT = TypeVar("PointT", bound=StudyPoint)
PointT_contra = TypeVar("PointT_contra", bound=StudyPoint, contravariant=True)


class StudyScope(Protocol[PointT_contra]):
    """How much of a paper is run."""

    def seeds(self, point: PointT_contra) -> range:
        """The seeds that a point is run with."""
        ...


@dataclass(frozen=True, slots=True)
class StudyFindings(Generic[PointT]):
    """The runs that were made, asked by point and policy; None where some seed has no such value."""

    kept: KeptRuns
    scope: StudyScope[PointT]

    def results(self, point: PointT, policy: str) -> list[RunResult]:
        """One for each seed. Raises SimulationError for a run that was not made."""
        found = [self.kept.result(point.run(policy, seed)) for seed in self.scope.seeds(point)]
        whole = [result for result in found if result is not None]
        if len(whole) < len(found):
            raise SimulationError(f"{policy} has not been run at {point}")
        return whole

    def mean(self, point: PointT, policy: str, number: Number) -> float | None:
        """The mean over seeds."""
        found = spread(number(result) for result in self.results(point, policy))
        return None if found is None else found.mean

    def ratio(self, point: PointT, policy: str, over: str, number: Number) -> Spread | None:
        """One policy's number over another's, seed by seed: both served the same requests."""
        pairs = zip(self.results(point, policy), self.results(point, over), strict=True)
        return spread(ratio(number(mine), number(theirs)) for mine, theirs in pairs)

    def ratio_across(
        self, point: PointT, policy: str, base: PointT, over: str, number: Number
    ) -> float | None:
        """The mean ratio of a policy's number at one point to another's at another, over the seeds both have."""
        pairs = zip(self.results(point, policy), self.results(base, over), strict=False)
        found = spread(ratio(number(mine), number(theirs)) for mine, theirs in pairs)
        return None if found is None else found.mean

    def count(self, point: PointT, policy: str, name: str) -> float:
        """Mean over seeds of a counter of the policy's meter."""
        return fmean(getattr(result.meter, name) for result in self.results(point, policy))

    def unfinished(self, points: Iterable[PointT], policies: Sequence[str]) -> list[str]:
        """A sentence for each policy and point at which requests did not finish: nothing compares with it."""
        return [
            f"{policy} at {point}: requests that did not finish: {missing}; it is not comparable."
            for point in points
            for policy in policies
            if (missing := sum(r.summary.requests - r.summary.finished for r in self.results(point, policy)))
        ]
