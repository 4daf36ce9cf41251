"""AdaptiveLLM's latencies (Fig. 4, and Poisson arrivals), and what its decisions cost (section 4.6)."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from headway.errors import SimulationError
from headway.results.study import Chart, StudyPart, Value
from headway_reproduce.adaptivellm.setting import (
    ADAPTIVE,
    BASELINE,
    LATENCY,
    LOAD,
    MAIN,
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
from headway_reproduce.adaptivellm.throughput import ThroughputFindings, file_name
from headway_reproduce.study import chart, short
from headway_reproduce.study_runs import RunResult, summary_key

turnaround = summary_key("weighted_turnaround")
"""Mean weighted turnaround."""

_OVER = ((BASELINE, PAPER_CUT_VLLM), (SWAP, PAPER_CUT_VLLM_S))
"""With whom the paper compares, and how much shorter its turnaround is, least and most."""
_LOADED_KEYS = {
    "mean_ttft_s": "TTFT s",
    "mean_jct_s": "JCT s",
    "p99_jct_s": "JCT p99 s",
    "weighted_turnaround": "weighted turnaround",
}


class LatencyFindings(ThroughputFindings):
    """Weighted turnaround against the batch cap (Fig. 4), and latencies under Poisson arrivals."""

    def cuts(self, point: AdaptivePoint) -> list[float | None]:
        """How much shorter the mean weighted turnaround is than each of the others': 0.2 is by a fifth."""
        found = [self.ratio(point, ADAPTIVE, over, turnaround) for over, _ in _OVER]
        return [None if each is None else 1 - each for each in found]

    def figure_4(self) -> StudyPart:
        """Mean weighted turnaround against the batch cap."""
        points = self.scope.latency_points()
        rows: list[list[Value]] = []
        for point in points:
            means = [self.mean(point, policy, turnaround) for policy in LATENCY]
            rows.append([str(point.group), point.cap, *means, *self.cuts(point)])
        table = self.table(
            "fig4",
            f"Mean weighted turnaround (Fig. 4; longest output {TABLE_LIMIT}, ours)",
            ["group", "batch cap", *LATENCY, *(f"cut vs {over}" for over, _ in _OVER)],
            rows,
            "(finish - send) / (finish - first scheduled); 1 is no waiting. A cut of 0.2 is a fifth less.",
            keys=2,
        )
        said = [self._said_of_cuts(place) for place in range(len(_OVER))]
        return StudyPart(
            title="Weighted turnaround (Fig. 4)",
            text=[*said, *self.unfinished(points, LATENCY)],
            tables=[table],
            charts=[self._chart(group) for group in self.scope.groups],
        )

    def _said_of_cuts(self, place: int) -> str:
        other, (least, most) = _OVER[place]
        points = [point for point in self.scope.latency_points() if point.cap in PAPER_CAPS]
        cuts = [cut for point in points if (cut := self.cuts(point)[place]) is not None]
        caps = " and ".join(map(str, PAPER_CAPS))
        return (
            f"At batch caps {caps} adaptivellm's is shorter than that of {other} by {min(cuts):.0%} to "
            f"{max(cuts):.0%}, in the mean {fmean(cuts):.0%}; in the paper by {least:.0%} to {most:.0%}."
        )

    def _chart(self, group: ModelAndData) -> Chart:
        points = [point for point in self.scope.latency_points() if point.group == group]
        curves = {
            policy: [(float(point.cap), self.mean(point, policy, turnaround)) for point in points]
            for policy in LATENCY
        }
        title = f"{group}: mean weighted turnaround"
        return chart(f"fig4-{file_name(group)}", title, curves, "batch cap, simulated", "1 is no waiting")

    def data(self) -> dict[str, object]:
        """Group -> batch cap -> how much shorter: 0.2 is by a fifth."""
        data: dict[str, dict[str, object]] = {}
        for point in self.scope.latency_points():
            vllm, vllm_s = map(short, self.cuts(point))
            data.setdefault(str(point.group), {})[str(point.cap)] = {"vs_vllm": vllm, "vs_vllm_s": vllm_s}
        return {"weighted_turnaround_cut": data}

    def loaded(self) -> StudyPart | None:
        """Latencies under Poisson arrivals; None where that is not run."""
        points = self.scope.loaded_points(self.capacity_rps())
        if not points:
            return None
        rows: list[list[Value]] = []
        for point in points:
            for policy in MAIN:
                means = [self.mean(point, policy, summary_key(key)) for key in _LOADED_KEYS]
                rows.append([str(point.group), policy, point.rate_rps, *means])
        table = self.table(
            "poisson",
            f"Poisson arrivals at {LOAD:g} of capacity, longest output {TABLE_LIMIT}",
            ["group", "policy", "req/s", *_LOADED_KEYS.values()],
            rows,
            "Capacity is the throughput of vllm-v0 with the same requests, all at once. Not in the paper.",
            keys=2,
        )
        return StudyPart(title="Under load", text=self.unfinished(points, MAIN), tables=[table])


# ---- what decisions cost -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What one group's decisions cost: CPU seconds of every plan, over the simulated seconds of the same run.

    `prediction_share` is what the run that predicts, then always recomputes, spends more than the same steps cost
    without predicting.
    """

    group: ModelAndData
    plan_s: float
    step_s: float
    share: float
    prediction_share: float


class Overheads(ThroughputFindings):
    """The runs in which every step was planned."""

    def found(self) -> list[Overhead]:
        """One for each group. Raises SimulationError for a run that was not made."""
        return [self._overhead(point) for point in self.scope.overhead_points()]

    def _overhead(self, point: AdaptivePoint) -> Overhead:
        mine, predicting, plain = (
            self._planned(point, policy) for policy in (ADAPTIVE, PREDICT_ONLY, BASELINE)
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
        """As a table."""
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
            "Predicting: vllm-v0 that predicts both costs, less vllm-v0. The paper: predicting "
            f"{PAPER_OVERHEAD[0]:.1%} to {PAPER_OVERHEAD[1]:.0%} of the run time; its scheduler 0.2 ms "
            "a call, 0.5 to 1 %.",
            measured_on=f"plan() timed on this machine, steps {SIMULATED}",
            decimals=3,
        )
        return StudyPart(title="Overhead (section 4.6)", tables=[table])

    def data(self) -> dict[str, object]:
        """The largest share of a run."""
        return {"decision_overhead": short(max(each.share for each in self.found()))}


def _share(result: RunResult) -> float:
    return result.meter.plan_s / result.end_s
