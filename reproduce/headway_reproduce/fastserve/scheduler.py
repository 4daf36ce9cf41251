"""FastServe's queues against others, and against the choice of their first quantum (Fig. 10)."""

from __future__ import annotations

from headway.lab.policy_choice import label
from headway.results.line_chart import Points, settings_svg
from headway.results.study import Chart, StudyPart, StudyTable, Value
from headway_reproduce.fastserve.findings import Findings, mean_jct_s, p99_jct_s, sensitivity
from headway_reproduce.fastserve.scope import ABLATED, loaded, with_quantum, with_starvation
from headway_reproduce.fastserve.setting import (
    FASTSERVE,
    FIXED_PRIORITY,
    PAPER_FIXED_GAIN,
    SCHEDULERS,
    SIMULATED,
    SINGLE,
    Point,
)
from headway_reproduce.study_findings import short


def load_points(findings: Findings) -> dict[float, Point]:
    """Load -> point of the ablation."""
    loads = findings.scope.scheduler_loads()
    return {load: loaded(ABLATED, load, findings.capacity_rps) for load in loads}


def scheduler_part(findings: Findings) -> StudyPart:
    """Mean completion time against the first quantum, and other orders of the same engine."""
    points = load_points(findings)
    tables = [_quantum_table(findings, points)]
    if findings.scope.starve_s():
        tables.append(_starvation_table(findings, points))
    if findings.scope.other_orders():
        tables.append(_orders_table(findings, points))
    return StudyPart(
        title="The scheduler alone (Fig. 10)",
        text=[_said_of_quanta(findings)],
        tables=tables,
        charts=[_chart(findings, load, point) for load, point in points.items()],
    )


def _swept(findings: Findings, point: Point, policy: str) -> Points:
    """(quantum, mean JCT)."""
    return [
        (quantum, findings.mean(with_quantum(point, policy, quantum), policy, mean_jct_s))
        for quantum in findings.scope.quanta()
    ]


def _quantum_table(findings: Findings, points: dict[float, Point]) -> StudyTable:
    rows: list[list[Value]] = []
    for load, point in points.items():
        for policy in SCHEDULERS:
            means = [mean for _, mean in _swept(findings, point, policy)]
            rows.append([f"{load:g}", label(policy), *means, sensitivity(means)])
    return StudyTable(
        name="fig10-quanta",
        title=f"Mean job completion time in seconds against the first quantum ({SINGLE.title})",
        measured_on=SIMULATED,
        headings=["load", "policy", *(f"q1 x {each:g}" for each in findings.scope.quanta()), "most / least"],
        rows=rows,
        note=f"q1 is the time of a decode step of one job, {1e3 * SINGLE.decode_step_s():.1f} ms.",
        keys=2,
    )


def _starvation_table(findings: Findings, points: dict[float, Point]) -> StudyTable:
    rows: list[list[Value]] = [
        [
            f"{load:g}",
            f"{starve_s:g}",
            *(
                findings.mean(with_starvation(point, starve_s), FASTSERVE, number)
                for number in (mean_jct_s, p99_jct_s)
            ),
        ]
        for load, point in points.items()
        for starve_s in findings.scope.starve_s()
    ]
    return StudyTable(
        name="starvation",
        title=f"How long a job waits before it is promoted ({SINGLE.title})",
        measured_on=SIMULATED,
        headings=["load", "seconds", "mean JCT s", "p99 JCT s"],
        rows=rows,
        note="The later version's text has 0.3 s; the released code 3 s, which is the preset's.",
        keys=2,
    )


def _orders_table(findings: Findings, points: dict[float, Point]) -> StudyTable:
    rows: list[list[Value]] = []
    for load, point in points.items():
        for policy in (FASTSERVE, *findings.scope.other_orders()):
            gain = findings.gain(point, policy)
            paper = PAPER_FIXED_GAIN if policy == FIXED_PRIORITY else None
            numbers = [findings.mean(point, policy, number) for number in (mean_jct_s, p99_jct_s)]
            rows.append([f"{load:g}", label(policy), *numbers, gain, paper])
    return StudyTable(
        name="orders",
        title=f"Other orders ({SINGLE.title})",
        measured_on=SIMULATED,
        headings=["load", "policy", "mean JCT s", "p99 JCT s", "over fastserve's mean", "paper: up to"],
        rows=rows,
        note="The paper's gain over fixed priority is of its later version, over shares of prompts and answers.",
        keys=2,
    )


def _chart(findings: Findings, load: float, point: Point) -> Chart:
    svg = settings_svg(
        f"Mean JCT at load {load:g}, {SINGLE.title}",
        {label(policy): _swept(findings, point, policy) for policy in SCHEDULERS},
        x_label="first quantum (decode steps), simulated",
        y_label="seconds",
    )
    return Chart(name=f"fig10-{load:g}", svg=svg)


def _said_of_quanta(findings: Findings) -> str:
    found = quantum_sensitivity(findings)
    shown = ", ".join(f"{label(policy)} {value:.2f}" for policy, value in found.items() if value is not None)
    return f"Largest mean over least, among the first quanta: {shown}. In the paper fastserve is insensitive."


def quantum_sensitivity(findings: Findings) -> dict[str, float | None]:
    """Policy -> the largest mean JCT over the least among the quanta, at the load where that is most."""
    points = load_points(findings).values()
    found: dict[str, float | None] = {}
    for policy in SCHEDULERS:
        each = [sensitivity(mean for _, mean in _swept(findings, point, policy)) for point in points]
        found[policy] = short(max((value for value in each if value is not None), default=None))
    return found
