"""AdaptiveLLM's turnaround (Fig. 4), and the cost of its decisions (section 4.6)."""

from __future__ import annotations

from dataclasses import dataclass

from headway.errors import SimulationError
from headway.results.study import Chart, StudyPart, Value
from headway_reproduce.adaptivellm.setting import (
    BASELINE,
    BY_PROMPT,
    LATENCY,
    ORDERS,
    PAPER_CAPS,
    PAPER_CUT_VLLM,
    PAPER_CUT_VLLM_S,
    PAPER_OVERHEAD,
    PREDICT_ONLY,
    SIMULATED,
    SWAP,
    TABLE_LIMIT,
    AdaptivePoint,
    ModelAndData,
)
from headway_reproduce.adaptivellm.throughput import RULES, ThroughputFindings, file_name
from headway_reproduce.study import Range, chart
from headway_reproduce.study_runs import RunResult, summary_key

turnaround = summary_key("weighted_turnaround")
"""Mean weighted turnaround."""

CUTS: dict[str, Range] = {BASELINE: PAPER_CUT_VLLM, SWAP: PAPER_CUT_VLLM_S}
"""The paper's baselines, and how much shorter its turnaround is, least and most."""


class LatencyFindings(ThroughputFindings):
    """Weighted turnaround against the batch cap (Fig. 4)."""

    def cut(self, point: AdaptivePoint, policy: str, over: str) -> float | None:
        """How much shorter a policy's mean weighted turnaround is than another's: 0.2 is by a fifth."""
        found = self.ratio(point, policy, over, turnaround)
        return None if found is None else 1 - found

    def cuts(self, policy: str, over: str) -> dict[AdaptivePoint, float]:
        """The cuts at the batch caps that the paper names."""
        points = [point for point in self.scope.latency_points() if point.cap in PAPER_CAPS]
        found = {point: self.cut(point, policy, over) for point in points}
        return {point: cut for point, cut in found.items() if cut is not None}

    def figure_4(self) -> StudyPart:
        """Mean weighted turnaround against the batch cap."""
        points = self.scope.latency_points()
        rows: list[list[Value]] = []
        for point in points:
            means = [self.mean(point, policy, turnaround) for policy in LATENCY]
            cuts = [self.cut(point, policy, over) for over in CUTS for policy in ORDERS.values()]
            rows.append([str(point.group), point.cap, *means, *cuts])
        table = self.table(
            "fig4",
            f"Mean weighted turnaround (Fig. 4; longest output {TABLE_LIMIT}, ours)",
            [
                *("group", "batch cap", *LATENCY),
                *(f"cut vs {over}, {name}" for over in CUTS for name in ORDERS),
            ],
            rows,
            f"(finish - send) / (finish - first scheduled); 1 is no waiting. A cut of 0.2 is a fifth less. {RULES}",
            keys=2,
        )
        return StudyPart(
            title="Weighted turnaround (Fig. 4)",
            text=self.unfinished(points, LATENCY),
            tables=[table],
            charts=[self._chart(group) for group in self.scope.groups],
        )

    def _chart(self, group: ModelAndData) -> Chart:
        points = [point for point in self.scope.latency_points() if point.group == group]
        curves = {
            policy: [(float(point.cap), self.mean(point, policy, turnaround)) for point in points]
            for policy in LATENCY
        }
        title = f"{group}: mean weighted turnaround"
        return chart(f"fig4-{file_name(group)}", title, curves, "batch cap, simulated", "1 is no waiting")


# ---- what decisions cost -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """The cost of one group's decisions: CPU seconds of every plan, over the simulated seconds of the same run.

    `prediction_share` is the additional cost of predicting and then always recomputing, over the same steps without
    predictions.
    """

    group: ModelAndData
    plan_s: float
    step_s: float
    share: float
    prediction_share: float


class Overheads(ThroughputFindings):
    """The runs in which every step was planned."""

    def found(self) -> list[Overhead]:
        """One overhead for each group. Raises SimulationError for a run that was not made."""
        return [self._overhead(point) for point in self.scope.overhead_points()]

    def _overhead(self, point: AdaptivePoint) -> Overhead:
        mine, predicting, plain = (
            self._planned(point, policy) for policy in (BY_PROMPT, PREDICT_ONLY, BASELINE)
        )
        return Overhead(
            group=point.group,
            plan_s=mine.meter.plan_s / mine.meter.plans,
            step_s=mine.end_s / mine.steps,
            share=_share(mine),
            prediction_share=_share(predicting) - _share(plain),
        )

    def _planned(self, point: AdaptivePoint, policy: str) -> RunResult:
        found = self.kept.result(point.run(policy, 0, every_step=True))
        if found is None:
            raise SimulationError(f"{policy} has not been run step by step at {point}")
        return found

    def part(self) -> StudyPart:
        """The overheads as a table."""
        rows: list[list[Value]] = [
            [
                str(each.group),
                1e6 * each.plan_s,
                1e3 * each.step_s,
                100 * each.share,
                100 * each.prediction_share,
            ]
            for each in self.found()
        ]
        table = self.table(
            "overhead",
            "CPU time of plan() over the time of the same run",
            ["group", "µs a plan", "ms a step", "% of the run", "% predicting"],
            rows,
            f"Of {BY_PROMPT}; predicting: {BASELINE} that predicts both costs, less {BASELINE}. The paper: predicting "
            f"{PAPER_OVERHEAD[0]:.1%} to {PAPER_OVERHEAD[1]:.0%} of the run time; its scheduler 0.2 ms "
            "a call, 0.5 to 1 %.",
            measured_on=f"plan() timed on this machine, steps {SIMULATED}",
            decimals=3,
        )
        return StudyPart(title="Overhead (section 4.6)", tables=[table])


def _share(result: RunResult) -> float:
    return result.meter.plan_s / result.end_s
