"""FastServe on more GPUs."""

from __future__ import annotations

from headway.lab.policy_choice import label
from headway.results.study import StudyPart, StudyTable, Value
from headway_reproduce.fastserve.findings import Findings, mean_jct_s, p99_jct_s
from headway_reproduce.fastserve.setting import FASTSERVE, LOAD, ORCA, SCALED, SIMULATED


def scale_part(findings: Findings) -> StudyPart | None:
    """Mean and tail on each machine; None where that is not run."""
    points = findings.scope.scaled(findings.capacity_rps)
    if not points:
        return None
    rows: list[list[Value]] = []
    for machine, point in points.items():
        numbers = [
            findings.mean(point, policy, number) for number in (mean_jct_s, p99_jct_s) for policy in SCALED
        ]
        gains = [findings.gain(point, ORCA, number) for number in (mean_jct_s, p99_jct_s)]
        rows.append([machine.title, machine.stages, point.rate_rps, *numbers, *gains])
    table = StudyTable(
        name="scale",
        title=f"Job completion times in seconds at {LOAD:g} of each machine's own capacity",
        measured_on=SIMULATED,
        headings=[
            "machine",
            "stages",
            "req/s",
            *(f"{what}, {label(policy)}" for what in ("mean", "p99") for policy in SCALED),
            "mean, over orca",
            "p99, over orca",
        ],
        rows=rows,
        note=f"Stages of eight GPUs; one does not hold the model. Over orca: how many times {FASTSERVE}'s it is.",
    )
    return StudyPart(title="More GPUs", text=findings.unfinished(points.values(), SCALED), tables=[table])
