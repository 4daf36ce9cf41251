"""The step-time model while it learns: its error minute by minute."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from headway.core.batch_shape import StepKind
from headway.results.study import StudyPart, StudyTable, Value
from headway_reproduce.ascendra.findings import Findings
from headway_reproduce.ascendra.setting import BUSY_LOADS, MAIN, PAPER_MODEL_ERROR, SIMULATED
from headway_reproduce.study_findings import short

LOAD = BUSY_LOADS[0]

Errors = dict[str, tuple[float | None, ...]]


def step_errors(findings: Findings) -> Errors:
    """Kind of step -> mean relative error of each minute."""
    rate_rps = LOAD * findings.reference_rps(MAIN)
    return findings.result(findings.scope.error_run(rate_rps)).step_errors


def model_part(findings: Findings) -> StudyPart:
    """Minute by minute, by kind of step."""
    found = step_errors(findings)
    kinds = list(found)
    minutes = max(map(len, found.values()), default=0)
    rows: list[list[Value]] = [
        [minute + 1, *(_at(found[kind], minute) for kind in kinds)] for minute in range(minutes)
    ]
    table = StudyTable(
        name="model-error",
        title=f"Mean relative error of predicted step times, Ascendra at load {LOAD:g} ({MAIN})",
        measured_on=SIMULATED,
        headings=["minute", *kinds],
        rows=rows,
        note="Each prediction is made when its step is scheduled, from what that instance has seen. Mixed steps have "
        "prompts beside decodes, prefill steps prompts alone. The simulated clock has the noise of measured steps.",
        decimals=3,
    )
    whole = {kind: _mean(found.get(kind, ())) for kind in (StepKind.PREFILL, StepKind.MIXED)}
    said = ", ".join(
        f"{kind} {error:.1%}" if error is not None else f"{kind} not seen" for kind, error in whole.items()
    )
    return StudyPart(
        title="The step-time model while serving",
        text=[f"Over all minutes: {said}; in the paper mostly below {PAPER_MODEL_ERROR:.0%}."],
        tables=[table],
    )


def _at(errors: Sequence[float | None], minute: int) -> float | None:
    return errors[minute] if minute < len(errors) else None


def _mean(errors: Sequence[float | None]) -> float | None:
    found = [error for error in errors if error is not None]
    return fmean(found) if found else None


def model_data(findings: Findings) -> dict[str, object]:
    """By kind of step, and each minute's."""
    found = step_errors(findings)
    kinds = (StepKind.PREFILL, StepKind.MIXED)
    return {
        **{kind: short(_mean(found.get(kind, ()))) for kind in kinds},
        "by_minute": {kind: [short(error) for error in found.get(kind, ())] for kind in kinds},
        "measured_on": SIMULATED,
        "paper": PAPER_MODEL_ERROR,
    }
