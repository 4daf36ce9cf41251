"""Magnus against everybody at every rate (Fig. 8 and 9)."""

from __future__ import annotations

from collections.abc import Sequence

from headway.results.line_chart import settings_svg
from headway.results.study import Chart, StudyPart, StudyTable, Value
from headway_reproduce.magnus.findings import GAINS, Findings, number, ranges_data
from headway_reproduce.magnus.scope import Point
from headway_reproduce.magnus.setting import (
    BASELINES,
    MAGNUS,
    PAPER_RANGES,
    POLICIES,
    SIMULATED,
    TODAY,
)
from headway_reproduce.study_findings import short

KEYS = {
    "throughput_rps": "requests/s",
    "mean_rt_s": "mean response time, s",
    "p95_rt_s": "95th percentile, s",
    "valid_tps": "valid tokens/s",
    "total_tps": "tokens/s, invalid ones too",
    "oom": "batches out of memory",
}
"""Key of the JSON -> what it is called."""
LOAD = "load, of vs's capacity"
"""What charts and tables call it."""
_KEEPS_UP = 0.9
"""Of what comes: who gets less through is overloaded."""


def overloaded(findings: Findings, points: Sequence[Point]) -> list[Point]:
    """Where none of the baselines can follow: only there can more get through than with any of them."""
    return [
        point
        for point in points
        if all(
            (findings.mean(point, base, number("throughput_rps")) or 0.0)
            < _KEEPS_UP * point.load * findings.capacity_rps()
            for base in BASELINES
        )
    ]


# ---- beside the paper ----------------------------------------------------------------------------------


def headline(findings: Findings) -> StudyPart:
    """Gains over all baselines, the paper's beside ours."""
    points = findings.scope.rates()
    rows: list[list[Value]] = []
    for key, gain in GAINS.items():
        ours = [findings.gains(some, gain) or (None, None) for some in (points, overloaded(findings, points))]
        rows.append([gain.heading, *ours[0], *ours[1], *PAPER_RANGES[key]])
    table = StudyTable(
        name="headline",
        title=f"Gains of magnus over {', '.join(BASELINES)}: least and most",
        measured_on=SIMULATED,
        headings=["what", "least", "most", "all overloaded: least", "most", "paper: least", "most"],
        rows=rows,
        note="0.66 is 66 % more, or that much shorter; less than 0 is worse. Nobody "
        "gets more through than comes: at rates that are 'all overloaded' none of the others can follow. The paper "
        "does not state its rates.",
    )
    return StudyPart(title="Beside the paper", text=_said_of_baselines(findings), tables=[table])


def _said_of_baselines(findings: Findings) -> list[str]:
    points = findings.scope.rates()
    said = []
    for base in BASELINES:
        more, shorter = (
            [findings.gain(point, MAGNUS, base, GAINS[key]) for point in (points[0], points[-1])]
            for key in ("throughput", "mean_rt_cut")
        )
        loads = f"at {points[0].load:g} and {points[-1].load:g} of vs's capacity"
        said.append(
            f"Over {base}, {loads}: requests/s {_signed(more[0])} and {_signed(more[1])}, mean response time "
            f"{_signed(_negative(shorter[0]))} and {_signed(_negative(shorter[1]))}."
        )
    return said


def _negative(value: float | None) -> float | None:
    return None if value is None else -value


def _signed(value: float | None) -> str:
    return "not measured" if value is None else f"{value:+.0%}"


# ---- every rate ----------------------------------------------------------------------------------------


def rates_part(findings: Findings) -> StudyPart:
    """Everybody's numbers at every rate."""
    points, shown = findings.scope.rates(), (*KEYS, "mean_batch")
    rows: list[list[Value]] = [
        [
            f"{point.load:g}",
            policy,
            *(findings.mean(point, policy, number(key)) for key in shown),
        ]
        for point in points
        for policy in (*POLICIES, TODAY)
    ]
    table = StudyTable(
        name="rates",
        title="Throughput and response time (Fig. 8 and 9)",
        measured_on=SIMULATED,
        headings=[LOAD, "policy", *KEYS.values(), "mean batch"],
        rows=rows,
        note="Means over seeds. Response time is from arrival to the whole answer, which batches return together. "
        f"{TODAY} is vLLM as it is now, on the same instances.",
        keys=2,
    )
    return StudyPart(
        title="Throughput and response time (Fig. 8 and 9)",
        text=findings.unfinished(points, (*POLICIES, TODAY)),
        tables=[table],
        charts=[
            rate_chart(findings, points, (*POLICIES, TODAY), key, f"rates-{key.replace('_', '-')}")
            for key in ("throughput_rps", "mean_rt_s", "p95_rt_s", "total_tps")
        ],
    )


def rate_chart(
    findings: Findings, points: Sequence[Point], policies: Sequence[str], key: str, name: str
) -> Chart:
    """One number of some policies against the load."""
    curves = {
        policy: [(point.load, findings.mean(point, policy, number(key))) for point in points]
        for policy in policies
    }
    title = KEYS[key][0].upper() + KEYS[key][1:]
    svg = settings_svg(title, curves, x_label=f"{LOAD}, simulated", y_label=KEYS[key])
    return Chart(name=name, svg=svg)


# ---- what scripts read ---------------------------------------------------------------------------------


def rates_data(findings: Findings) -> list[dict[str, object]]:
    """Every rate: each policy's numbers."""
    return [
        {
            "rate_over_vs_capacity": point.load,
            **{policy: numbers_at(findings, point, policy) for policy in POLICIES},
        }
        for point in findings.scope.rates()
    ]


def numbers_at(findings: Findings, point: Point, policy: str) -> dict[str, float | None]:
    """A policy's numbers at a point, as they are written for scripts."""
    return {key: short(findings.mean(point, policy, number(key))) for key in KEYS}


def gains_data(findings: Findings) -> dict[str, object]:
    """Ranges over all rates, and over those that no baseline can follow."""
    points = findings.scope.rates()
    return {
        "gain_range_over_all_baselines": ranges_data(findings, points),
        "gain_range_where_all_are_overloaded": ranges_data(findings, overloaded(findings, points)),
    }
