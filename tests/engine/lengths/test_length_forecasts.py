from __future__ import annotations

import asyncio
import logging
import threading
from itertools import count
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from headway.core.length_estimate import LengthEstimate
from headway.engine.lengths.forecasts import MAX_QUEUED, Arrival, Forecasts, LengthMetrics, within_limit
from headway.predict.lengths.facts import RequestFacts

FACTS = RequestFacts(num_prompt_tokens=10, max_output_tokens=100)
ESTIMATE = LengthEstimate(20.0, 10.0, 40.0)
SERVERS = count(1000)
"""Prometheus has one registry a process: every test counts under an API server of its own."""


class Scripted:
    """Answers what it is told to, an exception by raising it; `gate` keeps it from answering."""

    def __init__(self, *answers: LengthEstimate | Exception | None) -> None:
        self.answers = list(answers)
        self.taught: list[int] = []
        self.threads: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.deaf = False

    def predict(self, facts: RequestFacts) -> LengthEstimate | None:
        self.threads.add(threading.current_thread().name)
        assert self.gate.wait(10)
        answer = self.answers.pop(0) if self.answers else ESTIMATE
        if isinstance(answer, Exception):
            raise answer
        return answer

    def observe(self, facts: RequestFacts, output_tokens: int) -> None:
        self.threads.add(threading.current_thread().name)
        if self.deaf:
            raise ValueError("deaf")
        self.taught.append(output_tokens)


class Scene:
    """Forecasts over a scripted predictor, with series of their own."""

    def __init__(self, *answers: LengthEstimate | Exception | None, inline: bool = True) -> None:
        self.server = next(SERVERS)
        self.predictor = Scripted(*answers)
        self.heard = 0
        self.forecasts = Forecasts(
            self.predictor, LengthMetrics(self.server), inline=inline, on_observed=self._hear
        )

    def _hear(self) -> None:
        self.heard += 1

    def arrive(self, facts: RequestFacts = FACTS) -> Arrival:
        return asyncio.run(self.forecasts.arrive(facts))

    def sample(self, name: str, **labels: str) -> float | None:
        return REGISTRY.get_sample_value(f"headway_length_{name}", {"api_server": str(self.server), **labels})


def test_an_arrival_has_its_prediction_and_its_end_teaches() -> None:
    scene = Scene()
    arrival = scene.arrive()
    assert (arrival.facts, arrival.estimate) == (FACTS, ESTIMATE)
    arrival.ended(25)
    assert scene.predictor.taught == [25]
    assert scene.heard == 1
    assert scene.sample("predictions_total") == 1
    assert scene.sample("answers_total") == 1
    assert scene.sample("error_tokens") == 5.0


def test_the_error_is_the_mean_over_the_answers_that_were_predicted() -> None:
    scene = Scene(ESTIMATE, None, ESTIMATE)
    for tokens in (30, 90, 14):
        scene.arrive().ended(tokens)
    assert scene.sample("error_tokens") == (10 + 6) / 2
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
    assert scene.heard == 0


def test_facts_that_cannot_be_read_are_no_facts() -> None:
    def raising() -> RequestFacts:
        raise KeyError("prompt")

    scene = Scene()
    assert scene.forecasts.read(lambda: FACTS) is FACTS
    assert scene.forecasts.read(raising) is None
    assert scene.sample("faults_total") == 1


def test_a_slow_predictor_has_a_thread_and_the_loop_goes_on() -> None:
    scene = Scene(inline=False)
    scene.predictor.gate.clear()

    async def meanwhile() -> Arrival:
        arriving = asyncio.create_task(scene.forecasts.arrive(FACTS))
        await asyncio.sleep(0.01)
        assert not arriving.done()
        scene.predictor.gate.set()
        return await arriving

    arrival = asyncio.run(meanwhile())
    assert arrival.estimate == ESTIMATE
    arrival.ended(7)
    scene.forecasts.close()
    assert scene.predictor.taught == [7]
    assert scene.predictor.threads == {"headway-lengths_0"}


def test_whoever_finds_too_many_waiting_goes_on_without_a_prediction() -> None:
    scene = Scene(inline=False)
    scene.predictor.gate.clear()

    async def crowd() -> list[Arrival]:
        arriving = [asyncio.create_task(scene.forecasts.arrive(FACTS)) for _ in range(MAX_QUEUED + 3)]
        await asyncio.sleep(0)
        scene.predictor.gate.set()
        return await asyncio.gather(*arriving)

    arrivals = asyncio.run(crowd())
    assert [arrival.estimate for arrival in arrivals] == [ESTIMATE] * MAX_QUEUED + [None] * 3
    assert scene.sample("refusals_total", reason="busy") == 3
    assert scene.arrive().estimate == ESTIMATE, "there is room again"
    scene.forecasts.close()


def test_answers_that_end_faster_than_they_are_learned_from_hold_nobody_up() -> None:
    scene = Scene(inline=False)
    ended = [scene.arrive() for _ in range(MAX_QUEUED + 5)]
    scene.predictor.gate.clear()
    asking = scene.forecasts._thread
    assert asking is not None
    asking.submit(scene.predictor.predict, FACTS)  # the thread is at work, and lessons have to wait
    for tokens, arrival in enumerate(ended):
        arrival.ended(tokens)
    scene.predictor.gate.set()
    assert scene.arrive().estimate == ESTIMATE
    assert scene.predictor.taught == list(range(MAX_QUEUED))
    assert scene.sample("missed_lessons_total") == 5
    assert scene.sample("answers_total") == MAX_QUEUED + 5
    ended[0].ended(99)
    scene.forecasts.close()
    assert scene.predictor.taught[-1] == 99, "there is room again"


@pytest.mark.parametrize("inline", [False, True])
def test_once_closed_it_neither_predicts_nor_learns(inline: bool) -> None:
    scene = Scene(inline=inline)
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
