"""The paper's second figure: times to first token, first come or shortest first, on more and more GPUs."""

from __future__ import annotations

from headway.results.line_chart import settings_svg
from headway.results.study import Chart, StudyPart, StudyTable, Value
from headway_reproduce.ascendra.findings import Findings
from headway_reproduce.ascendra.measures import QUANTILES, AscendraResult
from headway_reproduce.ascendra.setting import (
    FIGURE_2_INSTANCES,
    FIGURE_2_LOAD,
    FIRST_COME,
    MAIN,
    SHORTEST,
    with_order,
)

MEASURED_ON = "simulated, 1 to 4 x A100 80 GB"
SHARES = (0.5, 0.9, 0.95, 0.99, 1.0)
"""Quantiles of the table."""
_DRAWN = range(50, QUANTILES + 1, 5)


def tails_part(findings: Findings) -> StudyPart | None:
    """Quantiles by order and instances; None where they are not run."""
    if findings.scope.quick:
        return None
    found = {
        (name, instances): _result(findings, name, instances)
        for name in (FIRST_COME, SHORTEST)
        for instances in FIGURE_2_INSTANCES
    }
    rows: list[list[Value]] = [
        [name, instances, *(result.ttft_s[round(share * QUANTILES)] for share in SHARES)]
        for (name, instances), result in found.items()
    ]
    rate_rps = FIGURE_2_LOAD * findings.reference_rps(MAIN)
    table = StudyTable(
        name="figure-2",
        title=f"Seconds to the first token, {rate_rps:.2f} req/s on any number of instances ({MAIN})",
        measured_on=MEASURED_ON,
        headings=["order", "instances", *(f"p{100 * share:g}" for share in SHARES)],
        rows=rows,
        decimals=3,
        keys=2,
    )
    curves = {
        f"{name}, {instances}": [(place / QUANTILES, result.ttft_s[place]) for place in _DRAWN]
        for (name, instances), result in found.items()
        if instances in (FIGURE_2_INSTANCES[0], FIGURE_2_INSTANCES[1])
    }
    svg = settings_svg(
        "TTFT by share of requests",
        curves,
        x_label="share of requests, simulated",
        y_label="seconds at most",
        doubling=False,
    )
    return StudyPart(
        title="Times to first token, first come and shortest first (Figure 2)",
        text=[
            "In the paper shortest first makes most times shorter and the tail longer, and more GPUs alone do not "
            "remove the tail."
        ],
        tables=[table],
        charts=[Chart(name="figure-2", svg=svg)],
    )


def _result(findings: Findings, name: str, instances: int) -> AscendraResult:
    rate_rps = FIGURE_2_LOAD * findings.reference_rps(MAIN)
    return findings.result(findings.scope.run(MAIN, with_order(name, instances), rate_rps, 0))
