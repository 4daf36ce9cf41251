"""Predicted lengths as tables: errors, correlations, and what deciding costs."""

from __future__ import annotations

from headway.results.study import StudyPart, StudyTable, Value
from headway_reproduce.magnus.accuracy import WAYS, Accuracy
from headway_reproduce.magnus.findings import Findings, number
from headway_reproduce.magnus.forecasts import ENCODER
from headway_reproduce.magnus.setting import MAGNUS, PAPER_CORRELATION, PREDICTING, SIMULATED
from headway_reproduce.study_findings import short


def prediction_part(found: Accuracy) -> StudyPart:
    """Errors of every way, and the correlation of input and answer."""
    columns = [(way, key) for key in ("rmse", "mae", "tau") for way in WAYS]
    rows: list[list[Value]] = []
    for each in found.sets:
        errors = {error.way: error for error in each.errors}
        values = [getattr(errors[way], key) for way, key in columns]
        rows.append([each.name, each.rows, each.mean_tokens, each.deviation_tokens, *values])
    accuracy_table = StudyTable(
        name="accuracy",
        title="Errors of predicted answer lengths, in tokens",
        measured_on=f"measured, {found.rows_of}",
        headings=[
            "data",
            "rows",
            "mean answer",
            "deviation",
            *(f"{_HEADINGS[key]}: {way}" for way, key in columns),
        ],
        rows=rows,
        note=f"On rows that were not trained on; encoder: {ENCODER}. The tasks share one predictor, each "
        "log has its own.",
    )
    correlation_table = StudyTable(
        name="correlation",
        title=f"Correlation of the user's input and the answer, in tokens ({found.rows_of})",
        measured_on=f"measured, {found.rows_of}",
        headings=["data", "rows", "Pearson's"],
        rows=[[each.name, each.rows, each.correlation] for each in found.sets],
        note="The paper's is of the answers of three models, 0.8 or more for most of its 18 pairs.",
    )
    return StudyPart(title="Predicted lengths", text=_said(found), tables=[accuracy_table, correlation_table])


_HEADINGS = {"rmse": "RMSE", "mae": "MAE", "tau": "tau"}


def _said(found: Accuracy) -> list[str]:
    tasks = [each for each in found.sets if not each.natural]
    alike = [each.name for each in tasks[1:] if (each.correlation or 0.0) >= PAPER_CORRELATION]
    said = [
        f"Input and answer go together by {PAPER_CORRELATION} or more in {len(alike)} of {len(tasks) - 1} tasks."
    ]
    logs = [each for each in found.sets if each.natural]
    if logs:
        shares = {each.name: each.errors[0].rmse / each.errors[-1].rmse for each in logs}
        named = ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
        said.append(
            "Answers to what people ask of an assistant are predicted worse: the forest's RMSE over that of the mean "
            f"of all answers is {named}; over all tasks {tasks[0].errors[0].rmse / tasks[0].errors[-1].rmse:.2f}."
        )
    return said


def prediction_data(found: Accuracy) -> dict[str, object]:
    """What scripts read: errors of every way, and correlations."""
    return {
        "predictor": {
            each.name: {
                error.way: {key: short(getattr(error, key)) for key in ("rmse", "mae", "tau")}
                for error in each.errors
            }
            for each in found.sets
        },
        "correlation": {each.name: short(each.correlation) for each in found.sets},
    }


# ---- what deciding costs -------------------------------------------------------------------------------


def overhead_part(findings: Findings, found: Accuracy) -> StudyPart:
    """This machine's time for each decision, beside the simulated time it is made in."""
    point = findings.scope.rates()[-1]
    rows: list[list[Value]] = [["predicting a length", found.predict_us]]
    for heading, key in (("joining a batch", "join_us"), ("choosing a batch", "choose_us")):
        rows.append([heading, findings.mean(point, MAGNUS, number(key))])
    table = StudyTable(
        name="overhead",
        title="CPU time of Magnus's decisions",
        measured_on="timed on this machine",
        headings=["decision", "µs"],
        rows=rows,
        note=f"Each for one request or batch, at load {point.load:g}, on one core.",
    )
    learned: list[list[Value]] = [
        [f"{point.load:g}", policy, *(findings.mean(point, policy, number(key)) for key in _LEARNED)]
        for point in findings.scope.rates()
        for policy in PREDICTING
    ]
    estimates = StudyTable(
        name="estimates",
        title="Errors of what was predicted while serving",
        measured_on=SIMULATED,
        headings=["load, of vs's capacity", "policy", *_LEARNED.values()],
        rows=learned,
        keys=2,
        detail=True,
    )
    return StudyPart(title="What deciding costs", tables=[table, estimates])


_LEARNED = {
    "length_rmse": "RMSE of lengths, tokens",
    "refits": "fits",
    "time_rmse_s": "RMSE of batch times, s",
    "oom": "batches out of memory",
}


def overhead_data(findings: Findings, found: Accuracy) -> dict[str, float | None]:
    """What scripts read, in microseconds."""
    point = findings.scope.rates()[-1]
    return {
        "predict_us": short(found.predict_us),
        **{key: short(findings.mean(point, MAGNUS, number(key))) for key in ("join_us", "choose_us")},
    }
