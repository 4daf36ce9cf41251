"""Lengths chosen by what the paper says about its baselines alone, and not by any gain."""

from __future__ import annotations

from math import log

from headway.results.study import StudyPart, StudyTable, Value
from headway_reproduce.fastserve.cells import (
    ABLATED,
    END_TO_END,
    FASTER_TRANSFORMER,
    FCFS,
    HALF_LOAD,
    ORCA,
    OVERLOAD,
    CapacityPoint,
    loaded,
)
from headway_reproduce.fastserve.findings import FastServeFindings, mean_jct_s
from headway_reproduce.fastserve.machine import CLUSTER, SINGLE

PAPER_KNEE_RPS = 0.5
"""The rate above which Orca's latency departs from FastServe's (section 6.2)."""
PAPER_STATIC = 2.0
"""FasterTransformer's mean relative to Orca's at rates up to that."""
PAPER_FULL_RPS = 16.0
"""The rate slightly above which the latency of MLFQ without preemption rises sharply on one GPU (section 6.3)."""


class FixedPoints(FastServeFindings):
    """Distance of the possible lengths from the paper's own points."""

    def part(self) -> StudyPart | None:
        """The candidates, with the chosen ones marked; None where they are not run."""
        candidates = self.scope.candidates(END_TO_END)
        if not candidates:
            return None
        nearest = min(candidates, key=self.distance)
        nearest_ablated = min(self.scope.candidates(ABLATED), key=self.ablated_distance)
        return StudyPart(
            title="Lengths, by the paper's own fixed points",
            text=[
                f"Nearest end to end: {nearest.lengths.output}; chosen: {END_TO_END.lengths.output}. Nearest for the "
                f"ablations: {nearest_ablated.lengths.output}; chosen: {ABLATED.lengths.output}."
            ],
            tables=[self._table(candidates), self._ablated_table()],
        )

    def static(self, place: CapacityPoint) -> float | None:
        """FasterTransformer's mean relative to Orca's at half of Orca's capacity."""
        point = loaded(place, HALF_LOAD, self.capacity_rps)
        return self.ratio(point, FASTER_TRANSFORMER, ORCA, mean_jct_s)

    def overloaded(self, place: CapacityPoint) -> float | None:
        """fastserve's gain over Orca above capacity, which plays no part in a choice by the baselines alone."""
        return self.gain(loaded(place, OVERLOAD, self.capacity_rps), ORCA)

    def distance(self, place: CapacityPoint) -> float:
        """The distance of both points from the paper's: 0 is at them, 0.7 is a factor of two."""
        static = self.static(place) or 0.0
        return _factor(self.capacity_rps(place), PAPER_KNEE_RPS) + _factor(static, PAPER_STATIC)

    def ablated_distance(self, place: CapacityPoint) -> float:
        """The distance of the engine's capacity from the paper's, on the same scale."""
        return _factor(self.capacity_rps(place), PAPER_FULL_RPS)

    def _table(self, candidates: list[CapacityPoint]) -> StudyTable:
        rows: list[list[Value]] = [
            [
                *(place.lengths.output, "chosen" if place == END_TO_END else ""),
                *(self.capacity_rps(place), self.static(place), self.distance(place), self.overloaded(place)),
            ]
            for place in candidates
        ]
        return self.table(
            "fixed-points",
            f"Lengths that could be the paper's ({CLUSTER.title})",
            [
                *(
                    "prompts and answers",
                    "",
                    "orca's capacity, req/s",
                    "fastertransformer over orca",
                    "distance",
                ),
                f"fastserve's gain over orca at load {OVERLOAD:g}",
            ],
            rows,
            f"The paper: a knee just above {PAPER_KNEE_RPS:g} req/s, and {PAPER_STATIC:g} at rates below it; here at "
            f"{HALF_LOAD:g} of capacity. Distance is the sum of both log ratios. The gain had no part in the choice.",
            keys=2,
        )

    def _ablated_table(self) -> StudyTable:
        rows: list[list[Value]] = [
            [place.lengths.output, "chosen" if place == ABLATED else "", self.capacity_rps(place)]
            for place in self.scope.candidates(ABLATED)
        ]
        return self.table(
            "fixed-points-ablations",
            f"The same for the ablations ({SINGLE.title})",
            ["prompts and answers", "", f"capacity of {FCFS}, req/s"],
            rows,
            f"The paper: full slightly above {PAPER_FULL_RPS:g} req/s.",
            keys=2,
        )


def _factor(ours: float, paper: float) -> float:
    return abs(log(ours / paper)) if ours else float("inf")
