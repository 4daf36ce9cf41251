from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import pytest

from headway.core.length_estimate import LengthEstimate
from headway.core.prediction_quality import kendall_tau
from headway.errors import ConfigError
from headway.sim.lengths import FALSE_CONFIDENCE, WAYS, Broken, LengthSource, NoisyOracle
from headway.traces import TraceRequest, parse_workload
from tests.sim.worlds import request

LONG_TAILED = parse_workload(
    "gen:poisson:rate=9/input=zipf:theta=1.1,max=400/output=zipf:theta=1.1,max=500/count=1500"
).requests()
SPREAD = parse_workload(
    "gen:poisson:rate=9/input=zipf:theta=1.1,max=400/output=lognormal:mean=120,sigma=0.8,max=900/count=1500"
).requests()


def estimates(source: LengthSource, requests: Sequence[TraceRequest]) -> list[LengthEstimate]:
    found = [source.predict(request, 1000) for request in requests]
    assert all(estimate is not None for estimate in found)
    return [estimate for estimate in found if estimate is not None]


def reached_tau(source: LengthSource, requests: Sequence[TraceRequest]) -> float:
    pairs = zip(estimates(source, requests), requests, strict=True)
    return kendall_tau((estimate.tokens, request.output_tokens) for estimate, request in pairs)


@pytest.mark.parametrize("tau", [0.3, 0.6, 0.8])
@pytest.mark.parametrize("requests", [LONG_TAILED, SPREAD], ids=["zipf", "lognormal"])
def test_the_noise_gives_the_tau_that_was_asked_for(requests: list[TraceRequest], tau: float) -> None:
    oracle = NoisyOracle(requests, tau)
    assert reached_tau(oracle, requests) == pytest.approx(tau, abs=0.01)
    assert reached_tau(NoisyOracle(requests, tau, seed=1), requests) == pytest.approx(tau, abs=0.01)


@pytest.mark.parametrize("tau", [0.3, 0.8, 1.0])
def test_eight_answers_in_ten_are_within_the_interval(tau: float) -> None:
    within = [
        estimate.low_tokens <= request.output_tokens * (1 + 1e-9)
        and request.output_tokens <= estimate.high_tokens
        for estimate, request in zip(estimates(NoisyOracle(SPREAD, tau), SPREAD), SPREAD, strict=True)
    ]
    # 1,500 draws of 0.8: a deviation of 0.01.
    assert fmean(within) == pytest.approx(1.0 if tau == 1 else 0.8, abs=0.04)


def test_a_tau_of_one_is_exact() -> None:
    assert [estimate.tokens for estimate in estimates(NoisyOracle(SPREAD, 1.0), SPREAD)] == [
        request.output_tokens for request in SPREAD
    ]


def test_a_prediction_is_its_requests_own() -> None:
    oracle = NoisyOracle(SPREAD, 0.6)
    first, again = oracle.predict(SPREAD[7], 1000), NoisyOracle(SPREAD, 0.6).predict(SPREAD[7], 10)
    assert first == again
    assert NoisyOracle(SPREAD, 0.6, seed=1).predict(SPREAD[7], 1000) != first


@pytest.mark.parametrize("tau", [0.0, -0.5, 1.1])
def test_a_tau_is_above_nothing_and_at_most_exact(tau: float) -> None:
    with pytest.raises(ConfigError, match=r"tau of a noisy oracle is .*; accepted: above 0, at most 1"):
        NoisyOracle(SPREAD, tau)


BY_HAND = [request(str(n), float(n), 5, output) for n, output in enumerate((2, 8, 50, 4))]
"""Between 2 and 50 tokens; the third comes when a trace that turns has turned."""


def test_what_is_broken_by_hand() -> None:
    def tokens(way: str) -> list[float]:
        return [estimate.tokens for estimate in estimates(Broken(BY_HAND, way), BY_HAND)]

    assert tokens("reversed") == [50.0, 12.5, 2.0, 25.0]
    assert tokens("constant") == [10.0] * 4
    assert tokens("turning") == [2.0, 8.0, 2.0, 25.0]
    assert all(2 <= each <= 50 for each in tokens("random"))


@pytest.mark.parametrize("way", WAYS)
def test_whatever_is_broken_is_sure_of_itself(way: str) -> None:
    for estimate in estimates(Broken(BY_HAND, way), BY_HAND):
        assert estimate.high_tokens / estimate.tokens == pytest.approx(FALSE_CONFIDENCE)
        assert estimate.tokens / estimate.low_tokens == pytest.approx(FALSE_CONFIDENCE)


@pytest.mark.parametrize(
    ("way", "least", "most"), [("reversed", -1.0, -0.99), ("random", -0.1, 0.1), ("constant", 0, 0)]
)
def test_what_is_broken_orders_nothing(way: str, least: float, most: float) -> None:
    assert least <= reached_tau(Broken(LONG_TAILED, way), LONG_TAILED) <= most


def test_a_way_that_does_not_exist_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="way of a broken predictor is 'x'; accepted: reversed, constant, random"
    ):
        Broken(BY_HAND, "x")


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_broken_about_no_requests(way: str) -> None:
    with pytest.raises(ConfigError, match="no requests to be wrong about; accepted: 1 or more"):
        Broken([], way)
