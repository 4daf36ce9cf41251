"""Lengths of answers, predicted as requests arrive and learned as answers end, and their metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from math import isfinite
from threading import BoundedSemaphore

from prometheus_client import Counter, Gauge

from headway.core.length_estimate import LengthEstimate
from headway.core.prediction_quality import PredictionQuality
from headway.predict.lengths.facts import LengthPredictor, RequestFacts

logger = logging.getLogger(__name__)

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


MAX_QUEUED = 16
"""Arrivals that may wait for a slow predictor, whoever finds more goes on without a prediction; and answers that may
wait to be learned from, more teach nothing."""
WINDOW_ANSWERS = 200
"""Last answers that the mean absolute error is taken over; tau and coverage have a window of that size too."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request between its arrival and its end: what was known of it, and what of its length was predicted."""

    forecasts: Forecasts
    facts: RequestFacts
    estimate: LengthEstimate | None

    def ended(self, output_tokens: int) -> None:
        """An answer has ended by itself, or at its limit."""
        self.forecasts.ended(self, output_tokens)


class Forecasts:
    """One predictor, asked and taught by the requests of one process.

    Fast ones (`inline`) answer on the event loop. Slow ones answer, and learn, on a thread of their own, one
    call at a time; arrivals wait for them, but never more than `MAX_QUEUED`, nor behind more lessons than that. What
    raises is logged the first time and counted every time, and the request goes on without a prediction. `on_observed`
    is called after each answer that was learned from.
    """

    def __init__(
        self,
        predictor: LengthPredictor,
        metrics: LengthMetrics,
        *,
        inline: bool,
        on_observed: Callable[[], None] = lambda: None,
    ) -> None:
        self.predictor = predictor
        self.quality = PredictionQuality()
        self._metrics = metrics
        self._on_observed = on_observed
        self._thread = None if inline else ThreadPoolExecutor(1, thread_name_prefix="headway-lengths")
        self._queued = 0
        self._lessons = BoundedSemaphore(MAX_QUEUED)
        self._closed = False
        self._errors_tokens: deque[float] = deque(maxlen=WINDOW_ANSWERS)
        self._has_failed = False

    def read(self, facts_of: Callable[[], RequestFacts | None]) -> RequestFacts | None:
        """The facts of a request; None where there are none to be had."""
        try:
            return facts_of()
        except Exception:
            self._failed("reading")
            return None

    async def arrive(self, facts: RequestFacts) -> Arrival:
        """The request with its prediction, which it waits for; without one where there is none to be had."""
        if self._closed or self._thread is None:
            return self.predicted(facts)
        if self._queued >= MAX_QUEUED:
            self.refuse()
            return Arrival(self, facts, None)
        self._queued += 1
        try:
            loop = asyncio.get_running_loop()
            estimate = await loop.run_in_executor(self._thread, self._predict, facts)
        finally:
            self._queued -= 1
        return Arrival(self, facts, estimate)

    def predicted(self, facts: RequestFacts) -> Arrival:
        """The request with its prediction, made on the calling thread."""
        return Arrival(self, facts, None if self._closed else self._predict(facts))

    def refuse(self) -> None:
        """Count a request that gets no prediction, since too many wait for one."""
        self._metrics.refused(Refusal.BUSY)

    def unpredicted(self, facts: RequestFacts) -> Arrival:
        """A request whose client says itself how long its answer will be: it teaches, and is not predicted."""
        return Arrival(self, facts, None)

    def ended(self, arrival: Arrival, output_tokens: int) -> None:
        """Learn from an answer that has ended by itself, or at its limit."""
        if self._closed:
            return
        estimate = arrival.estimate
        if estimate is not None:
            self.quality.observe(estimate, output_tokens)
            self._errors_tokens.append(abs(estimate.tokens - output_tokens))
        mean_error = sum(self._errors_tokens) / len(self._errors_tokens) if self._errors_tokens else None
        self._metrics.answered(mean_error, self.quality)
        if self._thread is None:
            self._observe(arrival.facts, output_tokens)
        elif self._lessons.acquire(blocking=False):
            lesson = self._thread.submit(self._observe, arrival.facts, output_tokens)
            lesson.add_done_callback(lambda _: self._lessons.release())
        else:
            self._metrics.missed()

    def close(self) -> None:
        """Let what is under way end; what arrives or ends afterwards is neither predicted nor learned from."""
        self._closed = True
        if self._thread is not None:
            self._thread.shutdown(wait=True)

    def _predict(self, facts: RequestFacts) -> LengthEstimate | None:
        started = time.perf_counter()
        try:
            estimate = self.predictor.predict(facts)
            if estimate is not None:
                estimate = within_limit(estimate, facts.max_output_tokens)
        except Exception:
            self._failed("predicting")
            self._metrics.refused(Refusal.FAILED)
            return None
        if estimate is None:
            self._metrics.refused(Refusal.UNKNOWN)
        else:
            self._metrics.predicted(time.perf_counter() - started)
        return estimate

    def _observe(self, facts: RequestFacts, output_tokens: int) -> None:
        try:
            self.predictor.observe(facts, output_tokens)
        except Exception:
            self._failed("learning")
        else:
            self._on_observed()

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
    """The estimate of an answer that ends at its limit at the latest.

    Raises ValueError for one that is none: not finite, or with its ends on the wrong sides.
    """
    ends = (estimate.low_tokens, estimate.tokens, estimate.high_tokens)
    if not all(map(isfinite, ends)) or sorted(ends) != list(ends):
        raise ValueError(f"{estimate} is no estimate: its ends are not around its median")
    low, tokens, high = (min(max(1.0, end), float(max_output_tokens)) for end in ends)
    return LengthEstimate(tokens, low, high)
