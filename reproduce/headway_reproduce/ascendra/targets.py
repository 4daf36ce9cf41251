"""How tight targets may be: the smallest factor on both that nine in ten requests are still within."""

from __future__ import annotations

from statistics import fmean

from headway.results.study import StudyPart, StudyTable, Value
from headway_reproduce.ascendra.findings import Findings, goodput, mean, scale_at_good
from headway_reproduce.ascendra.setting import (
    ASCENDRA,
    BASELINES,
    MAIN,
    PAPER_TIGHTER,
    SCALE_RATES,
    SIMULATED,
    SYSTEMS,
    Service,
)
from headway_reproduce.study_findings import short


def least_scale(findings: Findings, share: float, service: Service) -> float | None:
    """At a share of Ascendra's capacity, mean over seeds of the baselines; None if no factor tried is enough.

    Ascendra decides by targets, so it is run with each factor; the others are run once, and each request is asked
    which factor it would have needed.
    """
    rate_rps = share * findings.capacity_rps()
    if service is ASCENDRA:
        curve = [
            (scale, fmean(map(goodput, findings.at_rate(MAIN, rate_rps, service, scale=scale))))
            for scale in findings.scope.scales
        ]
        return scale_at_good(curve)
    return mean(findings.at_rate(MAIN, rate_rps, service), lambda result: result.needed_scale)


def targets_part(findings: Findings) -> StudyPart:
    """By share of capacity and system."""
    rows: list[list[Value]] = [
        [share, *(least_scale(findings, share, service) for service in SYSTEMS)] for share in SCALE_RATES
    ]
    table = StudyTable(
        name="slo-scale",
        title=f"Smallest factor on both targets that nine in ten are within ({MAIN})",
        measured_on=SIMULATED,
        headings=["rate, of Ascendra's capacity", *(service.name for service in SYSTEMS)],
        rows=rows,
        note="Smaller is tighter. Ascendra decides by targets, so it is run with each of a few factors, the smallest "
        f"{findings.scope.scales[0]:g}, and read off between two.",
    )
    tightest = [
        theirs / mine
        for share in SCALE_RATES
        for service in BASELINES
        if (mine := least_scale(findings, share, ASCENDRA))
        and (theirs := least_scale(findings, share, service))
    ]
    said = f"{max(tightest):.2f}" if tightest else "not known how many"
    return StudyPart(
        title="Tighter targets",
        text=[f"Ascendra holds targets up to {said} times tighter; in the paper up to {PAPER_TIGHTER:g}."],
        tables=[table],
    )


def targets_data(findings: Findings) -> dict[str, dict[str, float | None]]:
    """Share of capacity -> system -> factor."""
    return {
        f"{share:.1f}": {service.name: short(least_scale(findings, share, service)) for service in SYSTEMS}
        for share in SCALE_RATES
    }
