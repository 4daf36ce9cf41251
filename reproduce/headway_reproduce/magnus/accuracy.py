"""How well answer lengths are predicted, measured on rows that were not trained on, against simpler ways."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import StatisticsError, correlation, median

import msgspec
import numpy as np
import numpy.typing as npt

from headway.core.prediction_quality import kendall_tau
from headway.json_file import read_json, write_json
from headway.lab.papers import PaperRequest, Tell
from headway.results.study import StudyPart, StudyTable, Value
from headway_reproduce.magnus.data import DataSource, TaskData, TaskRow, data_digest, load_natural, load_tasks
from headway_reproduce.magnus.features import USER_GROUPS, MagnusFeatures
from headway_reproduce.magnus.forest import LengthForest, Tokens
from headway_reproduce.magnus.setting import PAPER_CORRELATION
from headway_reproduce.magnus.simulation import features
from headway_reproduce.study import short

MOST_ROWS = 1500
"""Of each task, or natural log, that errors are measured on; none of them is trained on."""
_QUICK_SECONDS, _FULL_SECONDS = 8.0, 25.0
_TIMED_REQUESTS = 200

FOREST, INPUT_ONLY, MEAN = "magnus", "input length only", "mean of the application"
WITH_INSTRUCTION = "input length and instruction"
WAYS = (FOREST, WITH_INSTRUCTION, INPUT_ONLY, MEAN)


class LengthErrors(msgspec.Struct, frozen=True, kw_only=True):
    """One way of predicting on one set of answers, in tokens; tau is Kendall's."""

    way: str
    rmse: float
    mae: float
    tau: float


class SetAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """One task or log: how long its answers are, how they go with the input, and each way's errors."""

    name: str
    natural: bool
    rows: int
    mean_tokens: float
    deviation_tokens: float
    correlation: float | None
    errors: tuple[LengthErrors, ...]


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, on rows of the digest `data`.

    `predict_us` is this machine's time for one request, its text encoded and the forest asked.
    """

    data: str
    rows_of: str
    sets: tuple[SetAccuracy, ...]
    predict_us: float


def accuracy_seconds(request: PaperRequest) -> float:
    """About how long `accuracy` will take."""
    if _file(request).exists():
        return 0.0
    return _QUICK_SECONDS if request.quick else _FULL_SECONDS


def accuracy(request: PaperRequest, source: DataSource, tell: Tell) -> Accuracy:
    """What the folder keeps, else measured now and kept. Quick: the tasks alone.

    Raises RecordError if what is kept cannot be read.
    """
    path = _file(request)
    kept = read_json(path, Accuracy)
    if kept is not None and kept.data == data_digest(source):
        return kept
    tell("predictor: errors on rows that were not trained on")
    sets, predict_us = _of_tasks(source)
    if not request.quick:
        sets += [_of_log(log) for log in load_natural(source)]
    found = Accuracy(data=data_digest(source), rows_of=source.title, sets=tuple(sets), predict_us=predict_us)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, found)
    return found


def _file(request: PaperRequest) -> Path:
    return request.root / f"magnus-accuracy{'-quick' if request.quick else ''}.json"


# ---- measuring -----------------------------------------------------------------------------------------


def _of_tasks(source: DataSource) -> tuple[list[SetAccuracy], float]:
    """One predictor for all tasks, as in the paper, judged on all and on each; and its time for a request."""
    tasks = load_tasks(source)
    train = [row for task in tasks for row in task.training]
    test = [row for task in tasks for row in task.workload[:MOST_ROWS]]
    answers = _answers(train, test)
    names = np.array([row.task for row in test])
    found = [_judged("all tasks", test, np.ones(len(test), dtype=bool), answers)]
    found += [_judged(task.name, test, names == task.name, answers) for task in tasks]
    return found, _seconds_a_request(train, test) * 1e6


def _of_log(log: TaskData) -> SetAccuracy:
    """A predictor of its own: of answers to anything that people ask."""
    test = log.workload[:MOST_ROWS]
    return _judged(log.name, test, np.ones(len(test), dtype=bool), _answers(log.training, test), natural=True)


def _answers(train: Sequence[TaskRow], test: Sequence[TaskRow]) -> dict[str, Tokens]:
    """Way -> what it predicts, (test,). The simpler ways are the same forest on some of the columns, and means."""
    seen, unseen, tokens = features(train), features(test), _outputs(train)
    found: dict[str, Tokens] = {}
    for way, first in {FOREST: 0, WITH_INSTRUCTION: USER_GROUPS, INPUT_ONLY: seen.shape[1] - 1}.items():
        found[way] = LengthForest(seen[:, first:], tokens).ask(unseen[:, first:])
    trained = np.array([row.task for row in train])
    means = {name: float(tokens[trained == name].mean()) for name in set(trained)}
    found[MEAN] = np.array([means[row.task] for row in test])
    return found


def _judged(
    name: str,
    test: Sequence[TaskRow],
    chosen: npt.NDArray[np.bool_],
    answers: dict[str, Tokens],
    *,
    natural: bool = False,
) -> SetAccuracy:
    rows = [row for row, taken in zip(test, chosen, strict=True) if taken]
    tokens = _outputs(rows)
    return SetAccuracy(
        name=name,
        natural=natural,
        rows=len(rows),
        mean_tokens=float(tokens.mean()),
        deviation_tokens=float(tokens.std()),
        correlation=_correlation(rows),
        errors=tuple(_errors(way, answers[way][chosen], tokens) for way in WAYS),
    )


def _errors(way: str, predicted: Tokens, tokens: Tokens) -> LengthErrors:
    off = predicted - tokens
    return LengthErrors(
        way=way,
        rmse=float(np.sqrt(np.mean(off * off))),
        mae=float(np.mean(np.abs(off))),
        tau=kendall_tau(zip(predicted.tolist(), tokens.tolist(), strict=True)),
    )


def _correlation(rows: Sequence[TaskRow]) -> float | None:
    """Pearson's, of the user's input and the answer; None where one of them never varies."""
    try:
        return correlation([row.input_tokens for row in rows], [row.output_tokens for row in rows])
    except StatisticsError:
        return None


def _outputs(rows: Sequence[TaskRow]) -> Tokens:
    return np.array([row.output_tokens for row in rows], dtype=np.float64)


def _seconds_a_request(train: Sequence[TaskRow], test: Sequence[TaskRow]) -> float:
    """The median, one request at a time."""
    forest = LengthForest(features(train), _outputs(train))
    maker = MagnusFeatures()
    times_s = []
    for row in test[:: max(1, len(test) // _TIMED_REQUESTS)]:
        started_s = time.perf_counter()
        forest.ask(maker.rows([row.facts()]))
        times_s.append(time.perf_counter() - started_s)
    return median(times_s)


# ---- as tables -----------------------------------------------------------------------------------------

_ERRORS = {"rmse": "RMSE", "mae": "MAE", "tau": "tau"}


def prediction_part(found: Accuracy) -> StudyPart:
    """Errors of every way, and the correlation of input and answer."""
    columns = [(way, key) for key in _ERRORS for way in WAYS]
    rows: list[list[Value]] = []
    for each in found.sets:
        errors = {error.way: error for error in each.errors}
        values = [getattr(errors[way], key) for way, key in columns]
        rows.append([each.name, each.rows, each.mean_tokens, each.deviation_tokens, *values])
    shown = [f"{_ERRORS[key]}: {way}" for way, key in columns]
    errors_table = StudyTable(
        name="accuracy",
        title="Errors of predicted answer lengths, in tokens",
        measured_on=f"measured, {found.rows_of}",
        headings=["data", "rows", "mean answer", "deviation", *shown],
        rows=rows,
        note="On rows that were not trained on; encoder: hash. The tasks share one predictor, each "
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
    return StudyPart(title="Predicted lengths", text=_said(found), tables=[errors_table, correlation_table])


def _said(found: Accuracy) -> list[str]:
    whole, *tasks = [each for each in found.sets if not each.natural]
    alike = sum((each.correlation or 0.0) >= PAPER_CORRELATION for each in tasks)
    said = [f"Input and answer go together by {PAPER_CORRELATION} or more in {alike} of {len(tasks)} tasks."]
    logs = [each for each in found.sets if each.natural]
    if logs:
        named = ", ".join(f"{each.name} {_over_mean(each):.2f}" for each in logs)
        said.append(
            "Answers to what people ask of an assistant are predicted worse: the forest's RMSE over that of the mean "
            f"of all answers is {named}; over all tasks {_over_mean(whole):.2f}."
        )
    return said


def _over_mean(found: SetAccuracy) -> float:
    return found.errors[0].rmse / found.errors[-1].rmse


def prediction_data(found: Accuracy) -> dict[str, object]:
    """What scripts read: errors of every way, and correlations."""
    return {
        "predictor": {
            each.name: {
                error.way: {key: short(getattr(error, key)) for key in _ERRORS} for error in each.errors
            }
            for each in found.sets
        },
        "correlation": {each.name: short(each.correlation) for each in found.sets},
    }
