"""Figures of FastServe's runs: latencies, gains, and the rates that keep a target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headway.results.study import Chart
from headway_reproduce.fastserve.cells import (
    CV_AXIS,
    EQUAL_LOAD_AXIS,
    FASTSERVE,
    LOW_CV_AXIS,
    RATE_AXIS,
    THETA_AXIS,
    CapacityPoint,
    FastServePoint,
    FastServeScope,
)
from headway_reproduce.fastserve.machine import SIMULATED, PaperMachine
from headway_reproduce.study import Range, chart, span
from headway_reproduce.study_runs import EngineFindings, Number, StudyRun, summary_key, throughput_rps

mean_jct_s = summary_key("mean_jct_s")
"""Mean job completion time."""
p50_jct_s = summary_key("p50_jct_s")
"""Median job completion time."""
p99_jct_s = summary_key("p99_jct_s")
"""99th percentile of job completion time: the papers say "tail" and not which."""
LATENCIES = (mean_jct_s, p99_jct_s)

AXIS_HEADINGS = {
    RATE_AXIS: "load (of the baseline's capacity)",
    CV_AXIS: "CV of arrivals",
    THETA_AXIS: "Zipf theta, at one rate",
    LOW_CV_AXIS: "CV of arrivals, below the knee",
    EQUAL_LOAD_AXIS: "Zipf theta, at one load",
}
ABLATED_HEADINGS = {**AXIS_HEADINGS, THETA_AXIS: AXIS_HEADINGS[EQUAL_LOAD_AXIS]}
KNEE = 2.0
"""A curve has its knee where latency is this many times that at the lowest load. Ours: the paper marks none."""

Curve = Sequence[tuple[float, float | None]]
"""(setting, value), by rising setting."""


class Held(NamedTuple):
    """The setting up to which a target is kept; `missed` is False if it is kept at every setting there is."""

    setting: float
    missed: bool

    def __str__(self) -> str:
        return f"{'' if self.missed else 'at least '}{self.setting:.2f}"


def held(curve: Curve, target: float) -> Held | None:
    """The setting where a curve first exceeds a target, on the straight line between its points; None if it begins
    above.
    """
    before: tuple[float, float] | None = None
    for setting, value in curve:
        if value is None:
            continue
        if value > target:
            if before is None:
                return None
            low, below = before
            return Held(low + (setting - low) * (target - below) / (value - below), missed=True)
        before = setting, value
    return None if before is None else Held(before[0], missed=False)


@dataclass(frozen=True)
class FastServeFindings(EngineFindings[FastServePoint]):
    """FastServe's runs."""

    measured_on = SIMULATED
    scope: FastServeScope

    def phases(self) -> Iterator[Sequence[StudyRun]]:
        """The phases: first capacity, which the rates of all others are shares of."""
        yield self.scope.capacity_runs()
        yield self.scope.loaded_runs(self.capacity_rps)

    def capacity_rps(self, place: CapacityPoint) -> float:
        """The throughput of a place's baseline with all of its requests at once."""
        return self.mean(place.at_once(), place.baseline, throughput_rps) or 0.0

    def gain(self, point: FastServePoint, over: str, number: Number = mean_jct_s) -> float | None:
        """Another policy's latency relative to fastserve's, mean over seeds: 2 means that fastserve needs half the
        time.
        """
        return self.ratio(point, over, FASTSERVE, number)

    def gains(self, points: Iterable[FastServePoint], over: str, number: Number = mean_jct_s) -> Range | None:
        """The least and the largest gain."""
        return span(self.gain(point, over, number) for point in points)

    def curve(
        self, points: Mapping[float, FastServePoint], policy: str, number: Number = mean_jct_s
    ) -> Curve:
        """A policy's latency against a setting."""
        return [(setting, self.mean(point, policy, number)) for setting, point in points.items()]

    def knee(self, points: Mapping[float, FastServePoint], policy: str) -> Held | None:
        """The load at which a policy's mean is `KNEE` times that at the lowest load."""
        curve = self.curve(points, policy)
        lowest = curve[0][1]
        return None if lowest is None else held(curve, KNEE * lowest)

    def jct_chart(
        self,
        name: str,
        machine: PaperMachine,
        points: Mapping[float, FastServePoint],
        policies: Mapping[str, str],
        x_label: str,
        *,
        doubling: bool,
    ) -> Chart:
        """Mean completion time against a setting; `policies` are the curves by their names in the chart."""
        curves = {called: self.curve(points, policy) for called, policy in policies.items()}
        title = f"Mean JCT, {machine.title}"
        return chart(name, title, curves, f"{x_label}, simulated", "seconds", doubling=doubling)


def largest(found: Range | None) -> float | None:
    """The upper end of a range."""
    return None if found is None else found[1]


def sensitivity(values: Iterable[float | None]) -> float | None:
    """The largest value over the smallest: 1 where nothing changes."""
    found = span(values)
    return found[1] / found[0] if found and found[0] else None


def said(found: Range | None) -> str:
    """A range in a cell or a sentence."""
    return "not run" if found is None else f"{found[0]:.2f} to {found[1]:.2f}"


def times(value: float | None) -> str:
    """A number in a cell or a sentence."""
    return "not run" if value is None else f"{value:.2f}"
