"""Ways of predicting a length, from the mean to a forest over embeddings, each taught and judged alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bench.length_data import Answered, DataSet
from bench.length_figures import Costs, Figures, Tokens, figures, median_us, plain_figures
from headway.core.length_estimate import LengthEstimate
from headway.predict.encoders import text_encoder
from headway.predict.forest_predictor import ForestPredictor, LengthFeatures
from headway.predict.history_features import HistoryFeatures
from headway.predict.length import RequestFacts
from headway.predict.length_forest import Rows
from headway.predict.length_settings import LengthSettings
from headway.predict.magnus_features import MagnusFeatures, user_input_tokens

MEAN, APP_MEAN, LINEAR, INPUT_FOREST, HISTORY = (
    "mean",
    "mean of the application",
    "input length, linear",
    "input length, forest",
    "learned",
)
BASELINES = (MEAN, APP_MEAN, LINEAR, INPUT_FOREST)
_PAPER = LengthSettings(forest="rf")


def judged(data: DataSet, encoded: Sequence[Remembering]) -> dict[str, Figures]:
    """The figures of every way that the set allows."""
    tokens = _tokens(data.test)
    found = {name: plain_figures(way(data), tokens) for name, way in _SIMPLE.items()}
    found[INPUT_FOREST] = _taught(data, _InputLength())
    found[HISTORY] = _taught(data, HistoryFeatures()) if data.has_text else _online(data)
    if not data.has_text:
        return found
    for features in encoded:
        features.encode(data)
        for name, settings in ((features.encoder, None), (f"{features.encoder}, rf", _PAPER)):
            found[name] = _taught(data, features, settings=settings, timed=features.computed)
    return found


class Remembering:
    """Magnus's features, computed once a request: sets overlap, and each is learned by two forests."""

    def __init__(self, encoder: str) -> None:
        self.encoder = encoder
        self.computed = MagnusFeatures(text_encoder(encoder))
        self.name, self.num_features = self.computed.name, self.computed.num_features
        self._known: dict[RequestFacts, Rows] = {}

    def encode(self, data: DataSet) -> None:
        """Compute what is not known yet of a set, all together."""
        requests = [row.facts for row in (*data.train, *data.test) if row.facts not in self._known]
        self._known.update(zip(requests, self.computed.rows(requests), strict=True))

    def rows(self, requests: Sequence[RequestFacts]) -> Rows:
        """(requests, features) of requests that were encoded."""
        return np.array([self._known[facts] for facts in requests], dtype=np.float32)

    def ended(self, facts: RequestFacts, output_tokens: int) -> None:
        """Texts say the same whatever has ended."""


def _tokens(rows: Sequence[Answered]) -> Tokens:
    return np.array([row.output_tokens for row in rows], dtype=np.float64)


def _inputs(rows: Sequence[Answered]) -> Tokens:
    return np.array([user_input_tokens(row.facts) for row in rows])


def _mean(data: DataSet) -> Tokens:
    return np.full(len(data.test), _tokens(data.train).mean())


def _app_mean(data: DataSet) -> Tokens:
    by_app: dict[str, list[int]] = {}
    for row in data.train:
        by_app.setdefault(row.facts.tenant, []).append(row.output_tokens)
    overall = _tokens(data.train).mean()
    return np.array([np.mean(by_app.get(row.facts.tenant, overall)) for row in data.test])


def _linear(data: DataSet) -> Tokens:
    slope, start = np.polyfit(_inputs(data.train), _tokens(data.train), 1)
    fitted: Tokens = np.maximum(1.0, start + slope * _inputs(data.test))
    return fitted


_SIMPLE: dict[str, Callable[[DataSet], Tokens]] = {MEAN: _mean, APP_MEAN: _app_mean, LINEAR: _linear}


class _InputLength:
    """The length of the user's input alone."""

    name = "input length"
    num_features = 1

    def rows(self, requests: Sequence[RequestFacts]) -> Rows:
        """(requests, 1)."""
        return np.array([[user_input_tokens(facts)] for facts in requests], dtype=np.float32).reshape(-1, 1)

    def ended(self, facts: RequestFacts, output_tokens: int) -> None:
        """The length says the same whatever has ended."""


def _taught(
    data: DataSet,
    features: LengthFeatures,
    *,
    settings: LengthSettings | None = None,
    timed: LengthFeatures | None = None,
) -> Figures:
    """A forest taught by one side of the set and judged by the other; `timed` is timed in the features' place."""
    predictor = ForestPredictor(features, settings)
    predictor.learn_from((row.facts, row.output_tokens) for row in data.train)
    requests = [row.facts for row in data.test]
    estimates = [estimate for estimate in predictor.predict_many(requests) if estimate is not None]
    return figures(estimates, _tokens(data.test), _costs(predictor, timed or features, requests))


def _costs(predictor: ForestPredictor, timed: LengthFeatures, requests: Sequence[RequestFacts]) -> Costs:
    """What one request takes by itself; the predictor's own features are looked up, which takes next to nothing."""
    timed.rows(requests[:1])
    encode_us = median_us(lambda index: timed.rows(requests[index : index + 1]), len(requests))
    own_us = median_us(lambda index: predictor.features.rows(requests[index : index + 1]), len(requests))
    whole_us = median_us(lambda index: predictor.predict(requests[index]), len(requests))
    return Costs(encode_us, max(0.0, whole_us - own_us))


def _online(data: DataSet) -> Figures:
    """Learned from nothing, an answer at a time in recorded order, by the paper's rule; judged where the rest is."""
    predictor = ForestPredictor(HistoryFeatures(), inline=True)
    estimates: list[LengthEstimate] = []
    tokens: list[int] = []
    for index, row in enumerate((*data.train, *data.test)):
        estimate = predictor.predict(row.facts)
        if index >= len(data.train) and estimate is not None:
            estimates.append(estimate)
            tokens.append(row.output_tokens)
        predictor.observe(row.facts, row.output_tokens)
    costs = _costs(predictor, predictor.features, [row.facts for row in data.test])
    return figures(estimates, np.array(tokens, dtype=np.float64), costs)
