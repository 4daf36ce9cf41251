from __future__ import annotations

from typing import Any

import pytest

from bench.gain.on_time_oracle import OUTPUT_WEIGHT, OnTimeOracle, PrefillRate, on_time_policy
from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job
from headway.core.plan import StepOutcome, StepPlan
from headway.core.slo import Slo
from headway.policies.policy import Policy
from headway.results.metrics import met_targets
from headway.sim.simulation import System
from tests.sim.worlds import Linear, calibration, limits, request, run
from tests.strategies import decoding, ids, make_job, prefilling


class PerToken(UnknownCost):
    """A second a token."""

    def prefill_s(self, num_tokens: int) -> float:
        return float(num_tokens)


def due(id_: str, ttft_s: float, prompt: int, **fields: Any) -> Job:
    return make_job(id_, prompt=prompt, slo=Slo(ttft_s=ttft_s), **fields)


def step(now_s: float, **tokens: int) -> StepOutcome:
    granted = {prefilling(name): count for name, count in tokens.items()}
    return StepOutcome(now_s=now_s, plan=StepPlan(), tokens=granted)


def oracle(**output_tokens: int) -> OnTimeOracle:
    return OnTimeOracle(output_tokens, PerToken())


def test_the_latest_start_by_hand() -> None:
    order = oracle(a=1, b=11, c=9)
    assert order.latest_start_s(due("a", 20.0, prompt=5)) == 20 - 5
    # First token at 30, 11 tokens 4 s apart are out at 70; it has 8 tokens to compute again, then 8 to come, a second
    # each: 70 - 8 - 8.
    preempted = make_job(
        "b", prompt=5, num_output_tokens=3, first_token_s=30.0, slo=Slo(ttft_s=1.0, tbt_s=4.0)
    )
    assert order.latest_start_s(preempted) == 70 - 8 - 8
    assert order.latest_start_s(make_job("c")) == float("inf")
    assert order.latest_start_s(decoding("c", slo=Slo(ttft_s=1.0))) == float("inf")


def test_work_is_the_prefill_and_four_tokens_for_each_to_come() -> None:
    assert oracle(a=7).work_tokens(make_job("a", prompt=5)) == 5 + 7 * OUTPUT_WEIGHT


def test_the_prefill_rate_is_of_steps_while_prompts_waited() -> None:
    rate = PrefillRate()
    rate.observe(step(0.0, a=10), busy=True)
    assert rate.tokens_a_s == 0.0  # nothing is known before the step is over
    rate.observe(step(2.0, a=1), busy=True)  # 10 tokens in 2 s; a single token is a decode
    assert rate.tokens_a_s == 5.0
    rate.observe(step(9.0, a=50), busy=False)
    rate.observe(step(10.0), busy=True)
    assert rate.tokens_a_s == 5.0


def told_a_rate(order: OnTimeOracle) -> None:
    """Prompts are computed at a token a second."""
    order.add(due("z", 1000.0, prompt=1))
    order.observe(step(-8.0, y=8))
    order.observe(step(0.0))


def test_whoever_costs_most_is_given_up_when_not_all_can_be_on_time() -> None:
    # Latest starts 0, 5 and 6; prompts of 4, 6 and 3 tokens at a token a second. a starts at 0, b at 4, c at 10 > 6:
    # of a (4 + 4 x 1), b (6 + 4 x 9) and c (3 + 4 x 1) b costs most. Without it c starts at 4.
    order = oracle(a=1, b=9, c=1, z=1)
    told_a_rate(order)
    for job in (due("a", 4.0, 4), due("b", 11.0, 6), due("c", 9.0, 3)):
        order.add(job)
    assert ids(order.top(3, 0.0)) == ["a", "c", "z"]
    assert ids(order.top(9, 0.0)) == ["a", "c", "z", "b"]


def test_who_is_late_or_has_no_target_waits_behind_with_the_least_work_first() -> None:
    order = oracle(late=9, none=1, soon=1)
    jobs = [due("late", 11.0, 5), make_job("none", prompt=3), due("soon", 30.0, 5)]
    for job in jobs:
        order.add(job)
    assert ids(order.top(3, 6.0)) == ["late", "soon", "none"]  # it can still begin: 6 + 5 <= 11
    assert ids(order.top(3, 6.5)) == ["soon", "none", "late"]
    assert ids(order.rank(jobs, 6.5)) == ["soon", "none", "late"]


def test_a_first_token_changes_the_target_that_counts() -> None:
    order = oracle(a=11)
    job = make_job("a", prompt=5, slo=Slo(ttft_s=20.0, tbt_s=4.0))
    order.add(job)
    order.remove(job)
    job.num_computed_tokens, job.num_output_tokens, job.first_token_s = 5, 1, 12.0
    order.touch(job)
    # 11 tokens 4 s apart from 12 on are out at 52, 10 are to come and one is to be computed.
    assert order.rank([job], 0.0) == [job]
    assert order.latest_start_s(job) == 52 - 1 - 10
    order.end(job)


@pytest.mark.parametrize("rival", ["vllm", "edf", "sjf"])
def test_more_are_on_time_than_under_a_preset_in_overload(rival: str) -> None:
    # A token of a prompt takes a hundredth of a second: long prompts (100 tokens) and short ones (10) alternate every
    # half second, 0.55 s of work each, so not all can have their first token within 2 s.
    slo = Slo(ttft_s=2.0, tbt_s=1.0)
    trace = [request(f"{n:03}", n / 2, 100 if n % 2 else 10, 2, slo=slo) for n in range(120)]
    system = System(
        limits=limits(max_num_seqs=8, max_num_batched_tokens=64, num_blocks=1000),
        calibration=calibration(Linear(0.01, 0.01)),
    )

    def build(cost: CostModel) -> Policy:
        return on_time_policy("oracle", {each.id: each.output_tokens for each in trace}, cost)

    met = [sum(map(met_targets, run(trace, policy, system)[0].values())) for policy in (build, rival)]
    assert met[0] > met[1]
