"""What AdaptiveLLM's decisions cost (section 4.6)."""

from __future__ import annotations

from dataclasses import dataclass

from headway.errors import SimulationError
from headway.results.study import StudyPart, StudyTable
from headway_reproduce.adaptivellm.findings import Findings
from headway_reproduce.adaptivellm.setting import (
    ADAPTIVE,
    BASELINE,
    PAPER_OVERHEAD,
    PREDICT_ONLY,
    SIMULATED,
    Group,
    Point,
)
from headway_reproduce.study_runs import KeptRuns, RunResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What one group's decisions cost: CPU seconds of every plan, over the simulated seconds of the same run.

    `prediction_share` is what the run that predicts, then always recomputes, spends more than the same steps cost
    without predicting.
    """

    group: Group
    plan_s: float
    step_s: float
    share: float
    prediction_share: float


def overheads(findings: Findings) -> list[Overhead]:
    """Of the runs in which every step was planned. Raises SimulationError for one that was not made."""
    return [_overhead(findings.kept, point) for point in findings.scope.overhead_points()]


def _overhead(kept: KeptRuns, point: Point) -> Overhead:
    mine, predicting, plain = (_planned(kept, point, policy) for policy in (ADAPTIVE, PREDICT_ONLY, BASELINE))
    return Overhead(
        group=point.group,
        plan_s=mine.meter.plan_s / mine.meter.plans,
        step_s=mine.end_s / mine.steps,
        share=_share(mine),
        prediction_share=_share(predicting) - _share(plain),
    )


def _planned(kept: KeptRuns, point: Point, policy: str) -> RunResult:
    found = kept.result(point.run(policy, 0, every_step=True))
    if found is None:
        raise SimulationError(f"{policy} has not been run step by step at {point}")
    return found


def _share(result: RunResult) -> float:
    return result.meter.plan_s / result.end_s


def overhead_part(found: list[Overhead]) -> StudyPart:
    """As a table."""
    table = StudyTable(
        name="overhead",
        title="CPU time of plan() over the time of the same run",
        measured_on=f"plan() timed on this machine, steps {SIMULATED}",
        headings=["group", "µs a plan", "ms a step", "% of the run", "% predicting"],
        rows=[
            [
                str(each.group),
                1e6 * each.plan_s,
                1e3 * each.step_s,
                100 * each.share,
                100 * each.prediction_share,
            ]
            for each in found
        ],
        note="Predicting: vllm-v0 that predicts both costs, less vllm-v0. The paper: predicting "
        f"{PAPER_OVERHEAD[0]:.1%} to {PAPER_OVERHEAD[1]:.0%} of the run time; its scheduler 0.2 ms a call, 0.5 to 1 %.",
        decimals=3,
    )
    return StudyPart(title="Overhead (section 4.6)", tables=[table])
