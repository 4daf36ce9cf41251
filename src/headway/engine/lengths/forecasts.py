"""Predicts answer lengths when requests arrive, learns when answers end, and counts both in metrics."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from math import isfinite
from typing import NamedTuple

from prometheus_client import Counter, Gauge

from headway.core.length_estimate import LengthEstimate
from headway.core.prediction_quality import PredictionQuality
from headway.predict.lengths.facts import LengthPredictor, RequestFacts
from headway.statistics import mean

logger = logging.getLogger(__name__)

_COUNTERS = {
    "headway_length_predictions": "Requests whose answer's length was predicted",
    "headway_length_prediction_seconds": "Time spent predicting them",
    "headway_length_answers": "Answers that ended by themselves or at their limit",
    "headway_length_faults": "Times the length predictor raised",
}
_GAUGES = {
    "headway_length_error_tokens": "Mean absolute error of the last 200 predicted answers",
    "headway_length_pinball_tokens": "Mean pinball loss of median and interval, last 200 predicted answers",
    "headway_length_rank_correlation": "Kendall's tau of predicted and real lengths, last 200 answers",
    "headway_length_coverage": "Share of the last 200 answers within their interval, which aims at 0.8",
}


class ForecastErrors(NamedTuple):
    """The errors of one prediction, in tokens."""

    absolute_tokens: float
    pinball_tokens: float


class NoForecast(StrEnum):
    """Why a request has no prediction: too little was learned yet, the predictor raised, or too many requests wait."""

    UNKNOWN = "unknown"
    FAILED = "failed"
    BUSY = "busy"


@cache
def _counter(name: str, *labels: str) -> Counter:
    """Make a counter at its first use, so that a server without predictions shows none."""
    text = _COUNTERS.get(name, "Requests without a predicted length, by reason")
    return Counter(name, text, ["api_server", *labels])


@cache
def _gauge(name: str) -> Gauge:
    # With several API servers each process writes its own series, told apart by the label, not by the process id.
    return Gauge(name, _GAUGES[name], ["api_server"], multiprocess_mode="mostrecent")


class LengthMetrics:
    """The metrics of one API-server process, by its index."""

    def __init__(self, api_server: int) -> None:
        self._api_server = str(api_server)
        for name in _COUNTERS:
            self._grow(name, 0)
        for reason in NoForecast:
            _counter("headway_length_refusals", "reason").labels(self._api_server, reason)

    def predicted(self, seconds: float) -> None:
        """Count a prediction and the seconds it took."""
        self._grow("headway_length_predictions", 1)
        self._grow("headway_length_prediction_seconds", seconds)

    def refused(self, reason: NoForecast) -> None:
        """Count a request without a prediction."""
        _counter("headway_length_refusals", "reason").labels(self._api_server, reason).inc()

    def failed(self) -> None:
        """Count an error of the predictor."""
        self._grow("headway_length_faults", 1)

    def answered(self, errors: Sequence[ForecastErrors], quality: PredictionQuality) -> None:
        """Count a finished answer. Quality measures that are not known yet are not shown."""
        self._grow("headway_length_answers", 1)
        values = {
            "headway_length_error_tokens": mean(each.absolute_tokens for each in errors) if errors else None,
            "headway_length_pinball_tokens": mean(each.pinball_tokens for each in errors) if errors else None,
            "headway_length_rank_correlation": quality.tau,
            "headway_length_coverage": quality.coverage,
        }
        for name, value in values.items():
            if value is not None:
                _gauge(name).labels(self._api_server).set(value)

    def _grow(self, name: str, by: float) -> None:
        _counter(name).labels(self._api_server).inc(by)


WINDOW_ANSWERS = 200
"""Errors are means over this many last answers; tau and coverage use a window of the same size."""


@dataclass(frozen=True, slots=True)
class ForecastArrival:
    """A request from its arrival to its end: the facts about it, and its prediction."""

    forecasts: Forecasts
    facts: RequestFacts
    estimate: LengthEstimate | None

    def ended(self, output_tokens: int) -> None:
        """Tell the predictor the length of an answer that ended by itself or at its limit."""
        self.forecasts.ended(self, output_tokens)


class Forecasts:
    """One process's predictor, called and taught on the calling thread.

    An error is logged the first time and counted every time; the request goes on without a prediction.
    """

    def __init__(self, predictor: LengthPredictor, metrics: LengthMetrics) -> None:
        self.predictor = predictor
        self.quality = PredictionQuality()
        self._metrics = metrics
        self._closed = False
        self._errors: deque[ForecastErrors] = deque(maxlen=WINDOW_ANSWERS)
        self._has_failed = False

    def read(self, facts_of: Callable[[], RequestFacts | None]) -> RequestFacts | None:
        """Collect the facts of a request; None if there are none."""
        try:
            return facts_of()
        except Exception:
            self._failed("reading")
            return None

    def arrive(self, facts: RequestFacts) -> ForecastArrival:
        """Predict the length of a new request. The arrival has no prediction if there was none to make."""
        return ForecastArrival(self, facts, None if self._closed else self._predict(facts))

    def refuse(self) -> None:
        """Count a request that gets no prediction because too many are waiting for one."""
        self._metrics.refused(NoForecast.BUSY)

    def unpredicted(self, facts: RequestFacts) -> ForecastArrival:
        """Take in a request whose client states the answer's length: it teaches the predictor, and is not predicted."""
        return ForecastArrival(self, facts, None)

    def ended(self, arrival: ForecastArrival, output_tokens: int) -> None:
        """Learn from an answer that ended by itself or at its limit."""
        if self._closed:
            return
        estimate = arrival.estimate
        if estimate is not None:
            self.quality.observe(estimate, output_tokens)
            self._errors.append(
                ForecastErrors(abs(estimate.tokens - output_tokens), estimate.pinball_tokens(output_tokens))
            )
        self._metrics.answered(self._errors, self.quality)
        try:
            self.predictor.observe(arrival.facts, output_tokens)
        except Exception:
            self._failed("learning")

    def close(self) -> None:
        """Stop predicting and learning."""
        self._closed = True

    def _predict(self, facts: RequestFacts) -> LengthEstimate | None:
        started = time.perf_counter()
        try:
            estimate = self.predictor.predict(facts)
            if estimate is not None:
                estimate = within_limit(estimate, facts.max_output_tokens)
        except Exception:
            self._failed("predicting")
            self._metrics.refused(NoForecast.FAILED)
            return None
        if estimate is None:
            self._metrics.refused(NoForecast.UNKNOWN)
        else:
            self._metrics.predicted(time.perf_counter() - started)
        return estimate

    def _failed(self, what: str) -> None:
        self._metrics.failed()
        if not self._has_failed:
            self._has_failed = True
            logger.exception(
                "predicting lengths failed (%s); requests go on without a prediction where it does, and "
                "headway_length_faults_total counts how often",
                what,
            )


def within_limit(estimate: LengthEstimate, max_output_tokens: int) -> LengthEstimate:
    """Cap an estimate at the answer's limit.

    Raises ValueError for an invalid estimate: not finite, or with its bounds in the wrong order.
    """
    ends = (estimate.low_tokens, estimate.tokens, estimate.high_tokens)
    if not all(map(isfinite, ends)) or sorted(ends) != list(ends):
        raise ValueError(f"{estimate} is no estimate: its ends are not around its median")
    low, tokens, high = (min(max(1.0, end), float(max_output_tokens)) for end in ends)
    return LengthEstimate(tokens, low, high)
