from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.cost import CostModel
from headway.core.length_estimate import LengthEstimate
from headway.core.prediction_quality import kendall_tau
from headway.core.slo import Slo
from headway.errors import ConfigError
from headway.policies.policy import Policy
from headway.policies.presets import build_policy, find_preset
from headway.policies.protocols import Governing
from headway.predict.lengths.facts import RequestFacts
from headway.sim.lengths import FALSE_CONFIDENCE, WAYS, AskedPredictor, Broken, LengthSource, NoisyOracle
from headway.sim.oracles import ORACLES
from headway.sim.simulation import System
from headway.traces import TraceRequest, parse_workload
from tests.sim.worlds import LIMIT, Linear, calibration, limits, preset, request, run
from tests.strategies import FEW

pytestmark = pytest.mark.slow


@dataclass
class LastAnswer:
    """Says what the last answer came to, and notes what it is told."""

    seen: list[tuple[RequestFacts, int]] = field(default_factory=list)

    def predict(self, facts: RequestFacts) -> LengthEstimate | None:
        return LengthEstimate.around(self.seen[-1][1]) if self.seen else None

    def observe(self, facts: RequestFacts, output_tokens: int) -> None:
        self.seen.append((facts, output_tokens))


def test_a_predictor_is_asked_as_requests_come_and_taught_as_answers_end() -> None:
    # Second steps: a (2 tokens) ends at 2 s, before c comes; b (9 tokens) after.
    trace = [
        replace(request("a", 0.0, 3, 2), prompt="hello", tenant="t", max_output_tokens=20),
        request("b", 1.0, 3, 9),
        request("c", 3.0, 3, 1),
    ]
    predictor = LastAnswer()
    records, _ = run(trace, lengths=AskedPredictor(predictor))
    assert {name: record.predicted_output_tokens for name, record in records.items()} == {
        "a": None,
        "b": None,
        "c": 2.0,
    }
    assert [tokens for _, tokens in predictor.seen] == [2, 1, 9]
    first = RequestFacts(num_prompt_tokens=3, max_output_tokens=20, user_input="hello", tenant="t")
    assert predictor.seen[0][0] == first
    assert predictor.seen[1][0].max_output_tokens == LIMIT


def test_the_instruction_is_what_many_prompts_share() -> None:
    trace = [
        replace(request(f"{number:02}", float(number), 3, 1), prompt=f"Answer in one word please: {number}")
        for number in range(12)
    ]
    predictor = LastAnswer()
    run(trace, lengths=AskedPredictor(predictor))
    facts, _ = predictor.seen[-1]
    assert (facts.instruction, facts.user_input) == ("Answer in one word please:", " 11")


def test_answers_that_were_cut_short_teach_nothing_and_are_forgotten() -> None:
    # b's first token is due before the engine, busy with a, can bring it.
    trace = [request("a", 0.0, 3, 9), request("b", 1.0, 3, 9, slo=Slo(ttft_s=2.0))]
    predictor = LastAnswer()
    one_seat = System(limits=limits(max_num_seqs=1), calibration=calibration())
    source = AskedPredictor(predictor)
    records, _ = run(trace, preset("vllm", leaving=("expired",)), one_seat, lengths=source)
    assert records["b"].outcome == "expired"
    assert [facts.num_prompt_tokens for facts, _ in predictor.seen] == [3]
    assert not source._asked


# ---- preset predicted in the simulator -------------------------------------------------------------------

BACKLOG = parse_workload(
    "gen:poisson:rate=3/input=zipf:theta=1.1,max=60/output=zipf:theta=1.1,max=200/count=600"
).requests()
"""More than two can serve, so that who comes first decides."""
HALF = BACKLOG[:300]
PAIR = System(
    limits=limits(max_num_seqs=8, batch_width=2, num_blocks=2000),
    calibration=calibration(Linear(0.02, 0.0004)),
)


def mean_jct_s(policy: Any, requests: Sequence[TraceRequest] = HALF, **options: Any) -> float:
    records, _ = run(requests, policy, PAIR, max_output_tokens=256, check=False, **options)
    return fmean((record.finished_s or 0.0) - record.arrival_s for record in records.values())


@pytest.fixture(scope="module")
def fastserve_s() -> float:
    return mean_jct_s("fastserve")


@pytest.fixture(scope="module")
def oracle_s() -> float:
    return mean_jct_s(ORACLES["srpt-oracle"]({each.id: each.output_tokens for each in HALF}))


def test_the_better_the_prediction_the_nearer_to_the_oracle(fastserve_s: float, oracle_s: float) -> None:
    exact, good, fair = (mean_jct_s("predicted", lengths=NoisyOracle(HALF, tau)) for tau in (1.0, 0.8, 0.6))
    assert oracle_s <= exact * 1.01
    assert exact < good < fair < fastserve_s


@pytest.mark.parametrize("way", ["reversed", "constant", "random"])
def test_a_broken_predictor_costs_nearly_nothing(way: str, fastserve_s: float) -> None:
    assert mean_jct_s("predicted", lengths=Broken(HALF, way)) <= 1.03 * fastserve_s


def test_without_predictions_it_is_fastserve_record_by_record() -> None:
    one, other = (
        run(BACKLOG[:200], policy, PAIR, max_output_tokens=256, check=False)
        for policy in ("predicted", "fastserve")
    )
    assert one == other


def test_trust_is_lost_when_predictions_turn_and_had_been_won_and_that_costs_nearly_nothing() -> None:
    made: list[Policy] = []

    def build(cost: CostModel) -> Policy:
        made.append(build_policy(find_preset("predicted"), cost))
        return made[-1]

    trusted: list[bool] = []

    class RecordedLengths(Broken):
        def ended(self, request: TraceRequest, *, finished: bool) -> None:
            order = made[0].order
            assert isinstance(order, Governing)
            trusted.append(order.trusts_predictions)

    turning_s = mean_jct_s(build, BACKLOG, lengths=RecordedLengths(BACKLOG, "turning"))
    assert turning_s <= 1.04 * mean_jct_s("fastserve", BACKLOG)
    assert not trusted[0]
    assert trusted[300]
    assert not trusted[-1]
    assert sum(one != other for one, other in pairwise(trusted)) == 2


@FEW
@given(
    tau=st.sampled_from([0.5, 1.0]),
    blocks=st.sampled_from([30, 60, 400]),
    count=st.integers(40, 90),
    host_blocks=st.sampled_from([0, 60]),
    asynchronous=st.booleans(),
)
def test_stretches_are_stepped_over_without_a_difference(
    tau: float, blocks: int, count: int, host_blocks: int, asynchronous: bool
) -> None:
    """With trust won on the way, so that both orders have ranked."""
    trace = BACKLOG[:count]
    trace = [each for each in trace if each.input_tokens + each.output_tokens <= 4 * blocks]
    system = System(
        limits=limits(
            max_num_seqs=6,
            batch_width=2,
            num_blocks=blocks,
            host_blocks=host_blocks,
            asynchronous=asynchronous,
        ),
        calibration=calibration(Linear(0.02, 0.0004), (0.9, 1.0, 1.3)),
    )
    either = [
        run(
            trace,
            "predicted",
            system,
            max_output_tokens=256,
            check=False,
            shortcut=shortcut,
            lengths=NoisyOracle(trace, tau),
        )
        for shortcut in (True, False)
    ]
    assert either[0] == either[1]


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
