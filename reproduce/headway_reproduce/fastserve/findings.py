"""What FastServe's experiments came to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway_reproduce.fastserve.scope import Place, Scope
from headway_reproduce.fastserve.setting import FASTSERVE, ORCA, Point
from headway_reproduce.study_findings import Number, StudyFindings, short, summary_key, throughput_rps

mean_jct_s = summary_key("mean_jct_s")
"""Mean job completion time."""
p50_jct_s = summary_key("p50_jct_s")
"""Its median."""
p99_jct_s = summary_key("p99_jct_s")
"""Its 99th percentile: the papers say "tail" and not which."""
per_token_s = summary_key("mean_normalized_latency_s")
"""Mean over requests of completion time over answer length."""

Range = tuple[float, float]
"""Least and most."""


@dataclass(frozen=True, slots=True)
class Findings(StudyFindings[Point]):
    """FastServe's runs."""

    scope: Scope

    def capacity_rps(self, place: Place) -> float:
        """What the baseline got through of a place's requests, all at once."""
        return self.mean(place.at_once(), ORCA, throughput_rps) or 0.0

    def gain(self, point: Point, over: str, number: Number = mean_jct_s) -> float | None:
        """How many times another policy's latency is fastserve's, mean over seeds: 2 is half the time."""
        found = self.ratio(point, over, FASTSERVE, number)
        return None if found is None else found.mean

    def gains(self, points: Iterable[Point], over: str, number: Number = mean_jct_s) -> Range | None:
        """The least and the largest gain."""
        return span(self.gain(point, over, number) for point in points)


def span(values: Iterable[float | None]) -> Range | None:
    """The least and the most of the values that are there."""
    found = [value for value in values if value is not None]
    return (min(found), max(found)) if found else None


def largest(found: Range | None) -> float | None:
    """The most of a range, as it is written for scripts."""
    return None if found is None else short(found[1])


def sensitivity(values: Iterable[float | None]) -> float | None:
    """The most over the least: 1 where nothing changes."""
    found = span(values)
    return found[1] / found[0] if found and found[0] else None


def said(found: Range | None) -> str:
    """A range in a sentence."""
    return "not measured" if found is None else f"{found[0]:.2f} to {found[1]:.2f} times"
