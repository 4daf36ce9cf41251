from __future__ import annotations

import logging
from itertools import count
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from headway.core.length_estimate import LengthEstimate
from headway.engine.lengths.forecasts import ForecastArrival, Forecasts, LengthMetrics, within_limit
from headway.predict.lengths.facts import RequestFacts

FACTS = RequestFacts(num_prompt_tokens=10, max_output_tokens=100)
ESTIMATE = LengthEstimate(20.0, 10.0, 40.0)
SERVERS = count(1000)
"""Prometheus has one registry a process: every test counts under an API server of its own."""


class Scripted:
    """Answers what it is told to, an exception by raising it."""

    def __init__(self, *answers: LengthEstimate | Exception | None) -> None:
        self.answers = list(answers)
        self.taught: list[int] = []
        self.deaf = False

    def predict(self, facts: RequestFacts) -> LengthEstimate | None:
        answer = self.answers.pop(0) if self.answers else ESTIMATE
        if isinstance(answer, Exception):
            raise answer
        return answer

    def observe(self, facts: RequestFacts, output_tokens: int) -> None:
        if self.deaf:
            raise ValueError("deaf")
        self.taught.append(output_tokens)


class Scene:
    """Forecasts over a scripted predictor, with series of their own."""

    def __init__(self, *answers: LengthEstimate | Exception | None) -> None:
        self.server = next(SERVERS)
        self.predictor = Scripted(*answers)
        self.forecasts = Forecasts(self.predictor, LengthMetrics(self.server))

    def arrive(self, facts: RequestFacts = FACTS) -> ForecastArrival:
        return self.forecasts.arrive(facts)

    def sample(self, name: str, **labels: str) -> float | None:
        return REGISTRY.get_sample_value(f"headway_length_{name}", {"api_server": str(self.server), **labels})


def test_an_arrival_has_its_prediction_and_its_end_teaches() -> None:
    scene = Scene()
    arrival = scene.arrive()
    assert (arrival.facts, arrival.estimate) == (FACTS, ESTIMATE)
    arrival.ended(25)
    assert scene.predictor.taught == [25]
    assert scene.sample("predictions_total") == 1
    assert scene.sample("answers_total") == 1
    assert scene.sample("error_tokens") == 5.0


def test_the_error_is_the_mean_over_the_answers_that_were_predicted() -> None:
    scene = Scene(ESTIMATE, None, ESTIMATE)
    for tokens in (30, 90, 14):
        scene.arrive().ended(tokens)
    assert scene.sample("error_tokens") == (10 + 6) / 2
    # Of 10, 20, 40: an answer of 30 costs 0.1 x 20, 0.5 x 10 and 0.1 x 10; one of 14 costs 0.1 x 4, 3 and 0.1 x 26.
    assert scene.sample("pinball_tokens") == pytest.approx((8 / 3 + 6 / 3) / 2)
    assert scene.sample("answers_total") == 3
    assert scene.sample("refusals_total", reason="unknown") == 1


def test_quality_is_shown_once_there_are_enough_answers() -> None:
    scene = Scene()
    for number in range(30):
        assert scene.sample("coverage") is None
        scene.arrive().ended(15 if number % 3 else 60)
    # The interval is 10 to 40: two answers in three are within it; all were predicted alike, so no ranking.
    assert scene.sample("coverage") == pytest.approx(2 / 3)
    assert scene.sample("rank_correlation") == 0.0


def test_a_predictor_that_raises_is_logged_once_and_counted_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene(ValueError("no"), ValueError("still no"))
    with caplog.at_level(logging.ERROR):
        arrivals = [scene.arrive() for _ in range(3)]
        scene.predictor.deaf = True
        arrivals[0].ended(3)
    assert [arrival.estimate for arrival in arrivals] == [None, None, ESTIMATE]
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info is not None
    assert "predicting lengths failed (predicting)" in caplog.text
    assert scene.sample("faults_total") == 3
    assert scene.sample("refusals_total", reason="failed") == 2


def test_facts_that_cannot_be_read_are_no_facts() -> None:
    def raising() -> RequestFacts:
        raise KeyError("prompt")

    scene = Scene()
    assert scene.forecasts.read(lambda: FACTS) is FACTS
    assert scene.forecasts.read(raising) is None
    assert scene.sample("faults_total") == 1


def test_once_closed_it_neither_predicts_nor_learns() -> None:
    scene = Scene()
    arrival = scene.arrive()
    scene.forecasts.close()
    arrival.ended(5)
    assert scene.predictor.taught == []
    assert scene.arrive().estimate is None


@pytest.mark.parametrize(
    "wrong",
    [
        LengthEstimate(nan, 1.0, 2.0),
        LengthEstimate(5.0, 1.0, inf),
        LengthEstimate(5.0, 6.0, 7.0),
        LengthEstimate(5.0, 1.0, 4.0),
    ],
)
def test_what_is_no_estimate_counts_as_a_fault(wrong: LengthEstimate) -> None:
    scene = Scene(wrong)
    assert scene.arrive().estimate is None
    assert scene.sample("faults_total") == 1


@given(ends=st.tuples(*[st.floats(-1e6, 1e9)] * 3).map(sorted), limit=st.integers(1, 10_000))
def test_estimates_stay_within_the_limit_and_in_order(ends: list[float], limit: int) -> None:
    low, tokens, high = ends
    held = within_limit(LengthEstimate(tokens, low, high), limit)
    assert 1 <= held.low_tokens <= held.tokens <= held.high_tokens <= limit
    if low >= 1 and high <= limit:
        assert held == LengthEstimate(tokens, low, high)
