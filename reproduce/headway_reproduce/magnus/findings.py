"""What Magnus's runs came to: means over seeds, and gains over others seed by seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headway.errors import SimulationError
from headway_reproduce.magnus.run import UNCHANGED, Change, KeptMagnusRuns, MagnusResult
from headway_reproduce.magnus.scope import Point, Scope
from headway_reproduce.magnus.setting import BASELINES, MAGNUS, VS
from headway_reproduce.study_findings import short, spread

Number = Callable[[MagnusResult], float | None]
"""What is asked of a run; None where it has no such value."""
Range = tuple[float, float]
"""Least and most."""


def number(key: str) -> Number:
    """The number that a result has under a key."""

    def value(result: MagnusResult) -> float | None:
        found: float | None = getattr(result, key)
        return found

    return value


@dataclass(frozen=True, slots=True)
class Gain:
    """How a number of one policy is put beside another's: so many times more, or so much shorter."""

    key: str
    heading: str
    shorter: bool = False

    def of(self, mine: MagnusResult, theirs: MagnusResult) -> float | None:
        """Mine over theirs less 1, or 1 less that: above 0 is better. None over nothing."""
        number, other = getattr(mine, self.key), getattr(theirs, self.key)
        if not other:
            return None
        more: float = number / other - 1
        return -more if self.shorter else more


GAINS = {
    "throughput": Gain("throughput_rps", "more requests/s"),
    "mean_rt_cut": Gain("mean_rt_s", "mean response time shorter by", shorter=True),
    "p95_rt_cut": Gain("p95_rt_s", "95th percentile shorter by", shorter=True),
    "valid_tps": Gain("valid_tps", "more valid tokens/s"),
    "total_tps": Gain("total_tps", "more tokens/s, invalid ones too"),
}
"""Key of the JSON -> what is compared. Source of the five: Fig. 8 and 9."""


@dataclass(frozen=True, slots=True)
class Findings:
    """The runs that were made, asked by point and policy."""

    kept: KeptMagnusRuns
    scope: Scope

    def capacity_rps(self, change: Change = UNCHANGED) -> float:
        """What vs gets through, all at once."""
        return self.mean(Point(load=0.0, change=change), VS, number("throughput_rps")) or 0.0

    def results(self, point: Point, policy: str) -> list[MagnusResult]:
        """One for each seed. Raises SimulationError for a run that was not made."""
        runs = [self.scope.run(point, policy, seed, self.capacity_rps) for seed in self.scope.seeds(point)]
        found = [result for run in runs if (result := self.kept.result(run)) is not None]
        if len(found) < len(runs):
            raise SimulationError(f"{policy} has not been run at {point}")
        return found

    def mean(self, point: Point, policy: str, asked: Number) -> float | None:
        """The mean over seeds; None where some seed has no such value."""
        found = spread(asked(result) for result in self.results(point, policy))
        return None if found is None else found.mean

    def gain(self, point: Point, policy: str, over: str, gain: Gain) -> float | None:
        """One policy's gain over another, mean over seeds: both served the same requests."""
        pairs = zip(self.results(point, policy), self.results(point, over), strict=True)
        found = spread(gain.of(mine, theirs) for mine, theirs in pairs)
        return None if found is None else found.mean

    def gains(self, points: Iterable[Point], gain: Gain, over: Sequence[str] = BASELINES) -> Range | None:
        """Magnus's least and largest gain over any of the others, at any of the points."""
        found = [self.gain(point, MAGNUS, base, gain) for point in points for base in over]
        known = [value for value in found if value is not None]
        return (min(known), max(known)) if known else None

    def unfinished(self, points: Iterable[Point], policies: Sequence[str]) -> list[str]:
        """A sentence for each policy and point at which requests did not finish."""
        return [
            f"{policy} at {point}: requests that did not finish: {missing}; it is not comparable."
            for point in points
            for policy in policies
            if (missing := sum(found.requests - found.finished for found in self.results(point, policy)))
        ]


def ranges_data(findings: Findings, points: Sequence[Point]) -> dict[str, list[float | None] | None]:
    """Key of the JSON -> least and largest gain over any baseline."""
    found = {key: findings.gains(points, gain) for key, gain in GAINS.items()}
    return {
        key: None if range_ is None else [short(value) for value in range_] for key, range_ in found.items()
    }
