"""What `/metrics` shows of predicted lengths, one series an API-server process, since each learns alone."""

from __future__ import annotations

from enum import StrEnum
from functools import cache

from prometheus_client import Counter, Gauge

from headway.core.prediction_quality import PredictionQuality

_COUNTERS = {
    "headway_length_predictions": "Requests whose answer's length was predicted",
    "headway_length_prediction_seconds": "Time spent predicting them",
    "headway_length_answers": "Answers that ended by themselves or at their limit",
    "headway_length_refits": "Times the length model was fitted anew",
    "headway_length_missed_lessons": "Answers not learned from, since the length predictor had too much to do",
    "headway_length_faults": "Times the length predictor raised",
}
_GAUGES = {
    "headway_length_error_tokens": "Mean absolute error of the last 200 predicted answers",
    "headway_length_rank_correlation": "Kendall's tau of predicted and real lengths, last 200 answers",
    "headway_length_coverage": "Share of the last 200 answers within their interval, which aims at 0.8",
}


class Refusal(StrEnum):
    """Why a request has no prediction: too little is known yet, the predictor raised, or it has too much to do."""

    UNKNOWN = "unknown"
    FAILED = "failed"
    BUSY = "busy"


@cache
def _counter(name: str, *labels: str) -> Counter:
    """Made at first use, so that a server that predicts nothing shows none."""
    text = _COUNTERS.get(name, "Requests without a predicted length, by reason")
    return Counter(name, text, ["api_server", *labels])


@cache
def _gauge(name: str) -> Gauge:
    # With several API servers each process writes its own series, told apart by the label and not by its number.
    return Gauge(name, _GAUGES[name], ["api_server"], multiprocess_mode="mostrecent")


class LengthMetrics:
    """The series of one API-server process, by its index."""

    def __init__(self, api_server: int) -> None:
        self._api_server = str(api_server)
        for name in _COUNTERS:
            self._grow(name, 0)
        for reason in Refusal:
            _counter("headway_length_refusals", "reason").labels(self._api_server, reason)

    def predicted(self, seconds: float) -> None:
        """A request got a prediction, which took so long."""
        self._grow("headway_length_predictions", 1)
        self._grow("headway_length_prediction_seconds", seconds)

    def refused(self, reason: Refusal) -> None:
        """A request got none."""
        _counter("headway_length_refusals", "reason").labels(self._api_server, reason).inc()

    def failed(self) -> None:
        """The predictor raised."""
        self._grow("headway_length_faults", 1)

    def missed(self) -> None:
        """An answer was not learned from."""
        self._grow("headway_length_missed_lessons", 1)

    def refitted(self) -> None:
        """The model was fitted anew."""
        self._grow("headway_length_refits", 1)

    def answered(self, mean_error_tokens: float | None, quality: PredictionQuality) -> None:
        """An answer has ended; what is unknown so far is not shown."""
        self._grow("headway_length_answers", 1)
        values = {
            "headway_length_error_tokens": mean_error_tokens,
            "headway_length_rank_correlation": quality.tau,
            "headway_length_coverage": quality.coverage,
        }
        for name, value in values.items():
            if value is not None:
                _gauge(name).labels(self._api_server).set(value)

    def _grow(self, name: str, by: float) -> None:
        _counter(name).labels(self._api_server).inc(by)
