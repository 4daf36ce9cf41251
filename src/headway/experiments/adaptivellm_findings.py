"""What AdaptiveLLM's experiments came to: means over seeds, and policies against policies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from headway.errors import SimulationError
from headway.experiments.adaptivellm import (
    ADAPTIVE,
    BASELINE,
    GROUPS,
    PLUS,
    SWAP,
    SWAP_FALLBACK,
    TODAY,
    Group,
    Point,
)
from headway.experiments.adaptivellm_scope import Scope
from headway.experiments.study_runs import KeptRuns, RunResult

Number = Callable[[RunResult], float | None]

GAINS = {
    "vs_recompute": (ADAPTIVE, BASELINE),
    "vs_swap": (ADAPTIVE, SWAP),
    "vs_swap_fallback": (ADAPTIVE, SWAP_FALLBACK),
    "plus_vs_recompute": (PLUS, BASELINE),
    "vs_vllm_today": (ADAPTIVE, TODAY),
    "plus_vs_vllm_today": (PLUS, TODAY),
}
"""Key of the JSON -> whose throughput, over whose."""


GAIN_HEADINGS = {
    "vs_recompute": "over vllm-v0",
    "vs_swap": "over vllm-s",
    "vs_swap_fallback": "over vllm-s-fallback",
    "plus_vs_recompute": "plus over vllm-v0",
    "vs_vllm_today": "over vllm today",
    "plus_vs_vllm_today": "plus over vllm today",
}
"""The same as tables call it."""

COUNTERS = ("swaps", "recomputes", "host_full")
"""Of `policy_meter.Meter`."""

_DIGITS = 4


def throughput_rps(result: RunResult) -> float | None:
    """Requests a second."""
    return result.summary.throughput_rps


def output_tps(result: RunResult) -> float | None:
    """Output tokens a second."""
    return result.summary.output_tps


def turnaround(result: RunResult) -> float | None:
    """Mean weighted turnaround."""
    return result.summary.weighted_turnaround


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean over seeds, and the standard deviation where there are several."""

    mean: float
    deviation: float | None


@dataclass(frozen=True, slots=True)
class Findings:
    """The runs that were made, asked by point and policy; None where some seed has no such value."""

    kept: KeptRuns
    scope: Scope

    def results(self, point: Point, policy: str) -> list[RunResult]:
        """One for each seed. Raises SimulationError for a run that was not made."""
        found = [self.kept.result(point.run(policy, seed)) for seed in self.scope.seeds(point)]
        whole = [result for result in found if result is not None]
        if len(whole) < len(found):
            raise SimulationError(f"{policy} has not been run at {point}")
        return whole

    def mean(self, point: Point, policy: str, number: Number) -> float | None:
        """The mean over seeds."""
        found = _spread(number(result) for result in self.results(point, policy))
        return None if found is None else found.mean

    def ratio(self, point: Point, policy: str, over: str, number: Number) -> Spread | None:
        """One policy's number over another's, seed by seed: both served the same requests."""
        pairs = zip(self.results(point, policy), self.results(point, over), strict=True)
        return _spread(_ratio(number(mine), number(theirs)) for mine, theirs in pairs)

    def ratio_across(self, point: Point, policy: str, base: Point, over: str, number: Number) -> float | None:
        """The mean ratio of a policy's number at one point to another's at another, over the seeds both have."""
        pairs = zip(self.results(point, policy), self.results(base, over), strict=False)
        found = _spread(_ratio(number(mine), number(theirs)) for mine, theirs in pairs)
        return None if found is None else found.mean

    def gain(self, point: Point, key: str) -> float | None:
        """The mean throughput ratio of a key of GAINS."""
        found = self.ratio(point, *GAINS[key], throughput_rps)
        return None if found is None else found.mean

    def cut(self, point: Point, policy: str, over: str) -> float | None:
        """How much shorter the mean weighted turnaround is than another policy's: 0.2 is by a fifth."""
        found = self.ratio(point, policy, over, turnaround)
        return None if found is None else 1 - found.mean

    def count(self, point: Point, policy: str, name: str) -> float:
        """Mean over seeds of a counter of the policy's meter."""
        return fmean(getattr(result.meter, name) for result in self.results(point, policy))

    def unfinished(self, points: Iterable[Point], policies: Sequence[str]) -> list[str]:
        """A sentence for each policy and point at which requests did not finish: nothing compares with it."""
        return [
            f"{policy} at {point}: requests that did not finish: {missing}; it is not comparable."
            for point in points
            for policy in policies
            if (missing := sum(r.summary.requests - r.summary.finished for r in self.results(point, policy)))
        ]

    def capacity_rps(self) -> dict[Group, float]:
        """What the baseline got through of each group's requests, all at once."""
        return {group: self.mean(Point(group=group), BASELINE, throughput_rps) or 0.0 for group in GROUPS}


def short(value: float | None) -> float | None:
    """As it is written for scripts."""
    return None if value is None else round(value, _DIGITS)


def file_name(group: Group) -> str:
    """A group in the names of files."""
    return f"{group.model}-{group.data}".lower()


def _spread(values: Iterable[float | None]) -> Spread | None:
    found = list(values)
    whole = [value for value in found if value is not None]
    if not whole or len(whole) < len(found):
        return None
    return Spread(fmean(whole), stdev(whole) if len(whole) > 1 else None)


def _ratio(mine: float | None, theirs: float | None) -> float | None:
    return mine / theirs if mine is not None and theirs else None
