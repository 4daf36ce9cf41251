"""What Ascendra's runs came to: goodput over rates, and the rate at which nine in ten are within their targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

from headway.errors import SimulationError
from headway_reproduce.ascendra.measures import AscendraResult
from headway_reproduce.ascendra.run import AscendraRun, KeptAscendraRuns
from headway_reproduce.ascendra.scope import Scope
from headway_reproduce.ascendra.setting import ASCENDRA, GOOD, MAIN, Case, Change, Service
from headway_reproduce.study_findings import spread

Number = Callable[[AscendraResult], float | None]
"""What is asked of a run; None where it has no such value."""
Curve = Sequence[tuple[float, float]]
"""(setting, share within targets), settings rising."""


def goodput(result: AscendraResult) -> float:
    """Share of all requests within both targets."""
    return result.goodput


@dataclass(frozen=True, slots=True)
class Findings:
    """The runs that were made; rates are in shares of a case's reference where they are called loads."""

    kept: KeptAscendraRuns
    scope: Scope

    def result(self, run: AscendraRun) -> AscendraResult:
        """What a run came to. Raises SimulationError for one that was not made."""
        found = self.kept.result(run)
        if found is None:
            raise SimulationError(
                f"{run.service.name} has not been run for {run.case} at {run.rate_rps:g} req/s"
            )
        return found

    def reference_rps(self, case: Case) -> float:
        """What the loads of a case are shares of."""
        return self.result(self.scope.reference_run(case)).steady_rps or 0.0

    def capacity_rps(self) -> float:
        """Ascendra's in the main case; where the sweep does not pass it, its largest rate."""
        found = self.rate_at_good(MAIN, ASCENDRA)
        return self.scope.loads[-1] * self.reference_rps(MAIN) if found is None else found

    def results(
        self, case: Case, load: float, service: Service, *, scale: float = 1.0
    ) -> list[AscendraResult]:
        """One for each seed, at a load."""
        return self.at_rate(case, load * self.reference_rps(case), service, scale=scale)

    def at_rate(
        self, case: Case, rate_rps: float, service: Service, *, scale: float = 1.0
    ) -> list[AscendraResult]:
        """One for each seed, at a rate."""
        runs = [self.scope.run(case, service, rate_rps, seed) for seed in self.scope.seeds]
        return [self.result(replace(run, slo_scale=scale)) for run in runs]

    def mean(self, case: Case, load: float, service: Service, number: Number = goodput) -> float | None:
        """The mean over seeds; None where some seed has no such value."""
        return mean(self.results(case, load, service), number)

    def curve(self, case: Case, service: Service) -> Curve:
        """Goodput over requests a second."""
        reference_rps = self.reference_rps(case)
        return [
            (load * reference_rps, fmean(map(goodput, self.results(case, load, service))))
            for load in self.scope.loads
        ]

    def rate_at_good(self, case: Case, service: Service) -> float | None:
        """Requests a second at which nine in ten are still within their targets."""
        return crossing(self.curve(case, service))

    def rate_gain(self, case: Case, over: Service) -> float | None:
        """Ascendra's rate at nine in ten over another's."""
        mine, theirs = self.rate_at_good(case, ASCENDRA), self.rate_at_good(case, over)
        return None if mine is None or theirs is None else mine / theirs

    def largest_goodput_gain(self, case: Case, over: Service) -> float | None:
        """The most that Ascendra's goodput is over another's, at the same rate of the sweep."""
        pairs = zip(self.curve(case, ASCENDRA), self.curve(case, over), strict=True)
        found = [mine / theirs for (_, mine), (_, theirs) in pairs if theirs]
        return max(found) if found else None

    def changed_rate(self, service: Service, change: Change, loads: Sequence[float]) -> float | None:
        """As `rate_at_good` in the main case, with one thing changed; a single seed."""
        reference_rps = self.reference_rps(MAIN)
        runs = [self.scope.run(MAIN, service, load * reference_rps, 0) for load in loads]
        return crossing([(run.rate_rps, self.result(replace(run, change=change)).goodput) for run in runs])


def mean(results: Sequence[AscendraResult], number: Number) -> float | None:
    """The mean over seeds; None where some seed has no such value."""
    found = spread(map(number, results))
    return None if found is None else found.mean


def crossing(curve: Curve, level: float = GOOD) -> float | None:
    """Where a curve first falls below a level, on the line between two points; None if it begins or stays there."""
    if not curve or curve[0][1] < level:
        return None
    for (low, above), (high, below) in pairwise(curve):
        if below < level:
            return low + (high - low) * (above - level) / (above - below)
    return None


def scale_at_good(curve: Curve, level: float = GOOD) -> float | None:
    """The least factor on targets that holds a level, on the line between two points; the first if it does already."""
    for place, (scale, share) in enumerate(curve):
        if share >= level:
            if not place:
                return scale
            tighter, less = curve[place - 1]
            return tighter + (scale - tighter) * (level - less) / (share - less)
    return None
