"""Errors of predicted answer lengths, measured on rows outside the training set, beside those of simpler methods."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from statistics import StatisticsError, correlation

import msgspec
import numpy as np
import numpy.typing as npt

from headway.core.prediction_quality import kendall_tau
from headway.json_file import read_json, write_json
from headway.lab.papers import PaperRequest, Tell
from headway.predict.lengths.facts import RequestFacts
from headway.predict.lengths.predictor import LengthLearner
from headway.results.study import StudyPart, StudyTable, Value
from headway.statistics import median
from headway_reproduce.magnus.data import DataSource, TaskRow, data_digest, load_tasks
from headway_reproduce.magnus.features import APP_GROUPS, USER_GROUPS, MagnusFeatures
from headway_reproduce.magnus.forest import LengthForest, Tokens
from headway_reproduce.magnus.setting import PAPER_CORRELATION
from headway_reproduce.magnus.simulation import features

MOST_ROWS = 1500
"""Rows of each task that errors are measured on; none of them is trained on."""
_SECONDS = 12.0
_TIMED_REQUESTS = 200
_EVERY_FOR_TIME = 4
"""One in this many training rows is used for a predictor that is only timed: its time hardly depends on the number."""

FOREST, INPUT_ONLY, MEAN = "magnus", "input length only", "mean of the application"
WITH_INSTRUCTION = "input length and instruction"
LEARNED, LEARNED_NO_TEXT = "learned", "learned, without text"
WAYS = (FOREST, WITH_INSTRUCTION, INPUT_ONLY, LEARNED, LEARNED_NO_TEXT, MEAN)
"""The paper's forest with hashed texts, with those of instructions alone, without any; the product's own predictor,
with the words of inputs and without; and the mean of each application."""
_FIRST_COLUMN = {FOREST: 0, WITH_INSTRUCTION: USER_GROUPS, INPUT_ONLY: USER_GROUPS + APP_GROUPS}
"""The first feature column that each method sees."""


class LengthErrors(msgspec.Struct, frozen=True, kw_only=True):
    """One method's errors on one set of answers, in tokens; tau is Kendall's."""

    way: str
    rmse: float
    mae: float
    tau: float


class SetAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """One task, or all: the length of its answers, their correlation with the input, and each method's errors."""

    name: str
    rows: int
    mean_tokens: float
    deviation_tokens: float
    correlation: float | None
    errors: tuple[LengthErrors, ...]


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """All results, measured on rows with the digest `data`.

    `way_us` is this machine's time for one request by each method but the mean: encoding its text and asking the
    forest.
    """

    data: str
    rows_of: str
    sets: tuple[SetAccuracy, ...]
    way_us: dict[str, float]

    @property
    def predict_us(self) -> float:
        """The time of the paper's method."""
        return self.way_us[FOREST]


def accuracy_seconds(request: PaperRequest) -> float:
    """About how long `accuracy` will take."""
    return 0.0 if _file(request).exists() else _SECONDS


def accuracy(request: PaperRequest, source: DataSource, tell: Tell) -> Accuracy:
    """The accuracy kept in the folder, else measured now and kept.

    Raises RecordError if the kept file cannot be read.
    """
    path = _file(request)
    kept = read_json(path, Accuracy)
    if kept is not None and kept.data == data_digest(source):
        return kept
    tell("predictor: errors on rows that were not trained on")
    sets, way_us = _of_tasks(source)
    found = Accuracy(data=data_digest(source), rows_of=source.title, sets=tuple(sets), way_us=way_us)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, found)
    return found


def _file(request: PaperRequest) -> Path:
    return request.root / "magnus-accuracy.json"


# ---- measuring -----------------------------------------------------------------------------------------


def _of_tasks(source: DataSource) -> tuple[list[SetAccuracy], dict[str, float]]:
    """One predictor for all tasks, as in the paper, judged on all and on each; and each method's time for a request."""
    tasks = load_tasks(source)
    train = [row for task in tasks for row in task.training]
    test = [row for task in tasks for row in task.workload[:MOST_ROWS]]
    answers = _answers(train, test)
    names = np.array([row.task for row in test])
    found = [_judged("all tasks", test, np.ones(len(test), dtype=bool), answers)]
    found += [_judged(task.name, test, names == task.name, answers) for task in tasks]
    return found, _way_us(train, test)


def _answers(train: Sequence[TaskRow], test: Sequence[TaskRow]) -> dict[str, Tokens]:
    """Way -> its predictions, (test,). The simpler methods are the same forest on some of the columns, and means."""
    seen, unseen, tokens = features(train), features(test), _outputs(train)
    found: dict[str, Tokens] = {}
    for way, first in _FIRST_COLUMN.items():
        found[way] = LengthForest(seen[:, first:], tokens).ask(unseen[:, first:])
    for way in (LEARNED, LEARNED_NO_TEXT):
        learner = _taught(train, way)
        said = (learner.predict(_facts(row, way)) for row in test)
        found[way] = np.array([0.0 if each is None else each.tokens for each in said])
    trained = np.array([row.task for row in train])
    means = {name: float(tokens[trained == name].mean()) for name in set(trained)}
    found[MEAN] = np.array([means[row.task] for row in test])
    return found


def _judged(
    name: str,
    test: Sequence[TaskRow],
    chosen: npt.NDArray[np.bool_],
    answers: dict[str, Tokens],
) -> SetAccuracy:
    rows = [row for row, taken in zip(test, chosen, strict=True) if taken]
    tokens = _outputs(rows)
    return SetAccuracy(
        name=name,
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
    """Pearson's correlation of the user's input and the answer; None where one of them never varies."""
    try:
        return correlation([row.input_tokens for row in rows], [row.output_tokens for row in rows])
    except StatisticsError:
        return None


def _outputs(rows: Sequence[TaskRow]) -> Tokens:
    return np.array([row.output_tokens for row in rows], dtype=np.float64)


def _taught(train: Sequence[TaskRow], way: str) -> LengthLearner:
    """The product's predictor after the training rows, learned in random order, as they would come."""
    learner, rows = LengthLearner(), list(train)
    Random("magnus accuracy").shuffle(rows)
    for row in rows:
        learner.observe(_facts(row, way), row.output_tokens)
    return learner


def _facts(row: TaskRow, way: str) -> RequestFacts:
    facts = row.facts()
    return facts if way == LEARNED else replace(facts, user_input="")


def _way_us(train: Sequence[TaskRow], test: Sequence[TaskRow]) -> dict[str, float]:
    """Way -> microseconds, the median, one request at a time."""
    tokens, maker, seen = _outputs(train), MagnusFeatures(), features(train)
    asks: dict[str, Callable[[TaskRow], object]] = {}
    for way, first in _FIRST_COLUMN.items():
        forest = LengthForest(seen[:, first:], tokens)
        asks[way] = partial(_ask, forest, maker, first)
    for way in (LEARNED, LEARNED_NO_TEXT):
        asks[way] = partial(_ask_learner, _taught(train[::_EVERY_FOR_TIME], way), way)
    sample = test[:: max(1, len(test) // _TIMED_REQUESTS)]
    return {way: 1e6 * median(_seconds(ask, row) for row in sample) for way, ask in asks.items()}


def _ask(forest: LengthForest, maker: MagnusFeatures, first: int, row: TaskRow) -> object:
    return forest.ask(maker.rows([row.facts()], text=first < USER_GROUPS)[:, first:])


def _ask_learner(learner: LengthLearner, way: str, row: TaskRow) -> object:
    return learner.predict(_facts(row, way))


def _seconds(ask: Callable[[TaskRow], object], row: TaskRow) -> float:
    started_s = time.perf_counter()
    ask(row)
    return time.perf_counter() - started_s


# ---- as tables -----------------------------------------------------------------------------------------

_ERRORS = {"rmse": "RMSE", "mae": "MAE", "tau": "tau"}


def prediction_part(found: Accuracy) -> StudyPart:
    """A table of every method's errors, and the correlation of input and answer."""
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
        note="On rows that were not trained on; encoder: hash. The tasks share one predictor.",
        detail=True,
    )
    correlation_table = StudyTable(
        name="correlation",
        title=f"Correlation of the user's input and the answer, in tokens ({found.rows_of})",
        measured_on=f"measured, {found.rows_of}",
        headings=["data", "rows", "Pearson's"],
        rows=[[each.name, each.rows, each.correlation] for each in found.sets],
        note="The paper's is of the answers of three models, 0.8 or more for most of its 18 pairs.",
    )
    cost_table = StudyTable(
        name="predictors",
        title="What text is worth: errors over all tasks, and the time of a prediction",
        measured_on=f"measured, {found.rows_of}; timed on this machine",
        headings=["way", "RMSE", "MAE", "tau", "µs"],
        rows=[
            [error.way, error.rmse, error.mae, error.tau, found.way_us.get(error.way)]
            for error in found.sets[0].errors
        ],
        note="LaBSE's weights are not here: texts are hashed, which a sentence encoder did not beat.",
    )
    return StudyPart(
        title="Predicted lengths", text=_said(found), tables=[cost_table, errors_table, correlation_table]
    )


def _said(found: Accuracy) -> list[str]:
    whole, *tasks = found.sets
    alike = sum((each.correlation or 0.0) >= PAPER_CORRELATION for each in tasks)
    rmse = {error.way: error.rmse for error in whole.errors}
    return [
        f"Input and answer go together by {PAPER_CORRELATION} or more in {alike} of {len(tasks)} tasks.",
        f"The text of inputs: RMSE {rmse[FOREST]:.1f} tokens with it, {rmse[WITH_INSTRUCTION]:.1f} without in the "
        f"paper's forest, {rmse[LEARNED]:.1f} with and {rmse[LEARNED_NO_TEXT]:.1f} without in the product's predictor.",
    ]
