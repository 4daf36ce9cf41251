"""Answer lengths predicted for the requests of a simulated run, and learned from them on its clock."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import floor

import numpy as np
import numpy.typing as npt

from headway.core.length_estimate import LengthEstimate
from headway.core.record import Outcome, Record
from headway.predict.encoders import text_encoder
from headway.predict.length_forest import LengthForest, Rows, Tokens
from headway.predict.length_settings import LengthSettings
from headway.predict.magnus_features import MagnusFeatures
from headway.results.metrics import end_s
from headway.traces import TraceRequest
from headway_reproduce.magnus.data import LONGEST_OUTPUT, DataSource, TaskRow, load_tasks
from headway_reproduce.magnus.setting import LEARN_EVERY_S
from headway_reproduce.magnus.stream import drawn_rows

ENCODER = "hash"
"""Needs no package and no file. LaBSE's place in the paper."""
SETTINGS = LengthSettings(forest="rf", trees=20, period_s=LEARN_EVERY_S)
"""The paper's forest and its rule of learning. A hundred trees err by no less here, and are fitted every three minutes
of every run."""


class Forecasts:
    """Predicts each request of a run when it comes, and learns from answers when they end.

    The forest starts from the training rows. Answers that were predicted badly are learned from: every three minutes
    of the run's clock a forest is fitted to the training rows and all of these, and used at once. Source: Magnus,
    section III-B.
    """

    def __init__(self, source: DataSource, seed: int, *, learns: bool = True) -> None:
        self.refits = 0
        self._source = source
        self._rows = _served_features(source, seed)
        self._outputs = [drawn.row.output_tokens for drawn in drawn_rows(source, seed)]
        self._tokens = _whole(_first_forest(source).ask(self._rows))
        self._worse: list[int] = []
        self._fitted = 0
        self._learns = learns
        self._due_s = LEARN_EVERY_S

    def estimate(self, request: TraceRequest) -> LengthEstimate:
        """How long the answer will probably be, asked when the request comes."""
        self._learn(request.arrival_s)
        return LengthEstimate.around(float(self._tokens[int(request.id)]))

    def ended(self, record: Record) -> None:
        """An answer has ended; told in the order of time."""
        self._learn(end_s(record))
        predicted = record.predicted_output_tokens
        if record.outcome is not Outcome.FINISHED or predicted is None:
            return
        if SETTINGS.worth_learning(predicted, record.output_tokens):
            self._worse.append(int(record.id))

    def _learn(self, now_s: float) -> None:
        """Fit again if it is due and there is something new."""
        if not self._learns or now_s < self._due_s:
            return
        self._due_s = LEARN_EVERY_S * (floor(now_s / LEARN_EVERY_S) + 1)
        if len(self._worse) == self._fitted:
            return
        self._fitted = len(self._worse)
        rows, tokens = training(self._source)
        outputs = np.array([self._outputs[number] for number in self._worse], dtype=np.float64)
        forest = LengthForest(
            np.concatenate([rows, self._rows[self._worse]]), np.concatenate([tokens, outputs]), SETTINGS
        )
        self._tokens = _whole(forest.ask(self._rows))
        self.refits += 1


def features(rows: Sequence[TaskRow], encoder: str = ENCODER) -> Rows:
    """(rows, features): what the forest sees of each."""
    return MagnusFeatures(text_encoder(encoder)).rows([row.facts() for row in rows])


@lru_cache(maxsize=2)
def training(source: DataSource) -> tuple[Rows, Tokens]:
    """The features and answers of the training rows of all tasks."""
    rows = [row for task in load_tasks(source) for row in task.training]
    return features(rows), np.array([row.output_tokens for row in rows], dtype=np.float64)


@lru_cache(maxsize=2)
def _first_forest(source: DataSource) -> LengthForest:
    return LengthForest(*training(source), SETTINGS)


@lru_cache(maxsize=4)
def _served_features(source: DataSource, seed: int) -> Rows:
    return features([drawn.row for drawn in drawn_rows(source, seed)])


def _whole(answers: Tokens) -> npt.NDArray[np.float64]:
    """The middle of each answer, (rows,), rounded, 1 to Gmax."""
    found: npt.NDArray[np.float64] = np.clip(np.rint(answers[:, 1]), 1, LONGEST_OUTPUT)
    return found
