"""AdaptiveLLM's latencies: weighted turnaround against the batch cap (Fig. 4), and Poisson arrivals."""

from __future__ import annotations

from statistics import fmean

from headway.results.line_chart import settings_svg
from headway.results.study import Chart, StudyPart, StudyTable, Value
from headway_reproduce.adaptivellm.findings import Findings, file_name, turnaround
from headway_reproduce.adaptivellm.setting import (
    ADAPTIVE,
    BASELINE,
    LATENCY,
    LOAD,
    MAIN,
    PAPER_CAPS,
    PAPER_CUT_VLLM,
    PAPER_CUT_VLLM_S,
    SIMULATED,
    SWAP,
    TABLE_LIMIT,
    Group,
    Point,
)
from headway_reproduce.study_findings import short, summary_key

_OVER = ((BASELINE, PAPER_CUT_VLLM), (SWAP, PAPER_CUT_VLLM_S))
"""With whom the paper compares, and how much shorter its turnaround is, least and most."""
_LOADED_KEYS = {
    "mean_ttft_s": "TTFT s",
    "mean_jct_s": "JCT s",
    "p99_jct_s": "JCT p99 s",
    "weighted_turnaround": "weighted turnaround",
}


def figure_4(findings: Findings) -> StudyPart:
    """Mean weighted turnaround against the batch cap."""
    points = findings.scope.latency_points()
    rows: list[list[Value]] = []
    for point in points:
        means = [findings.mean(point, policy, turnaround) for policy in LATENCY]
        rows.append([str(point.group), point.cap, *means, *_cuts(findings, point)])
    table = StudyTable(
        name="fig4",
        title=f"Mean weighted turnaround (Fig. 4; longest output {TABLE_LIMIT}, ours)",
        measured_on=SIMULATED,
        headings=["group", "batch cap", *LATENCY, *(f"cut vs {over}" for over, _ in _OVER)],
        rows=rows,
        note="(finish - send) / (finish - first scheduled); 1 is no waiting. A cut of 0.2 is a fifth less.",
        keys=2,
    )
    said = [_said_of_cuts(findings, place) for place in range(len(_OVER))]
    return StudyPart(
        title="Weighted turnaround (Fig. 4)",
        text=[*said, *findings.unfinished(points, LATENCY)],
        tables=[table],
        charts=[_chart(findings, group) for group in findings.scope.groups()],
    )


def _cuts(findings: Findings, point: Point) -> list[float | None]:
    return [findings.cut(point, ADAPTIVE, over) for over, _ in _OVER]


def _said_of_cuts(findings: Findings, place: int) -> str:
    other, (least, most) = _OVER[place]
    points = [point for point in findings.scope.latency_points() if point.cap in PAPER_CAPS]
    cuts = [cut for point in points if (cut := _cuts(findings, point)[place]) is not None]
    caps = " and ".join(map(str, PAPER_CAPS))
    return (
        f"At batch caps {caps} adaptivellm's is shorter than that of {other} by {min(cuts):.0%} to {max(cuts):.0%}, "
        f"in the mean {fmean(cuts):.0%}; in the paper by {least:.0%} to {most:.0%}."
    )


def _chart(findings: Findings, group: Group) -> Chart:
    points = [point for point in findings.scope.latency_points() if point.group == group]
    curves = {
        policy: [(float(point.cap), findings.mean(point, policy, turnaround)) for point in points]
        for policy in LATENCY
    }
    title = f"{group}: mean weighted turnaround"
    svg = settings_svg(title, curves, x_label="batch cap, simulated", y_label="1 is no waiting")
    return Chart(name=f"fig4-{file_name(group)}", svg=svg)


def figure_4_data(findings: Findings) -> dict[str, object]:
    """Group -> batch cap -> how much shorter: 0.2 is by a fifth."""
    data: dict[str, dict[str, object]] = {}
    for point in findings.scope.latency_points():
        vllm, vllm_s = map(short, _cuts(findings, point))
        data.setdefault(str(point.group), {})[str(point.cap)] = {"vs_vllm": vllm, "vs_vllm_s": vllm_s}
    return dict(data)


def loaded(findings: Findings) -> StudyPart | None:
    """Latencies under Poisson arrivals; None where that is not run."""
    points = findings.scope.loaded_points(findings.capacity_rps())
    if not points:
        return None
    rows: list[list[Value]] = []
    for point in points:
        for policy in MAIN:
            means = [findings.mean(point, policy, summary_key(key)) for key in _LOADED_KEYS]
            rows.append([str(point.group), policy, point.rate_rps, *means])
    table = StudyTable(
        name="poisson",
        title=f"Poisson arrivals at {LOAD:g} of capacity, longest output {TABLE_LIMIT}",
        measured_on=SIMULATED,
        headings=["group", "policy", "req/s", *_LOADED_KEYS.values()],
        rows=rows,
        note="Capacity is the throughput of vllm-v0 with the same requests, all at once. Not in the paper.",
        keys=2,
    )
    return StudyPart(title="Under load", text=findings.unfinished(points, MAIN), tables=[table])
