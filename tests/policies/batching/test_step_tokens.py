"""The budget of a step that follows from targets and step times, in both pools alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.cost import UnknownCost
from headway.core.job import Job
from headway.core.slo import Slo
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.batching.elastic import Elastic
from headway.policies.batching.step_tokens import (
    TOKENS_TRIED,
    high_step_tokens,
    longest_ttft_s,
    low_step_tokens,
)
from headway.policies.batching.within_budgets import WithinBudgets
from headway.policies.order.arrival import Arrival
from tests.policies.instance import LinearCost
from tests.strategies import UNTIMED, decoding, make_job


def asking(tbt_s: float | None) -> list[Job]:
    return [make_job("a"), make_job("b", slo=Slo(tbt_s=tbt_s))]


def test_a_low_step_keeps_the_tightest_target_between_tokens() -> None:
    # 0.1 s a token: 512 tokens take 51.2 s.
    assert low_step_tokens(LinearCost(), asking(51.2), 8192) == 512
    assert low_step_tokens(LinearCost(), asking(51.1), 8192) == 256
    assert low_step_tokens(LinearCost(), asking(1e-3), 8192) == 256
    assert low_step_tokens(LinearCost(), [*asking(60.0), *asking(30.0)], 8192) == 256


def test_a_high_step_keeps_the_target_for_first_token() -> None:
    assert high_step_tokens(LinearCost(), 102.4, 8192) == 1024
    assert high_step_tokens(LinearCost(), 102.3, 8192) == 512


def test_the_engine_allows_no_more() -> None:
    assert low_step_tokens(LinearCost(), asking(9e4), 3000) == 2048
    assert low_step_tokens(LinearCost(), asking(9e4), 100) == 100
    assert low_step_tokens(LinearCost(), asking(None), 100) == 100
    assert high_step_tokens(LinearCost(), 1e6, 3000) == 2048


def test_without_targets_or_step_times_it_is_the_usual() -> None:
    assert low_step_tokens(LinearCost(), asking(None), 8192) == 2048
    assert low_step_tokens(UnknownCost(), asking(0.05), 8192) == 2048
    assert high_step_tokens(LinearCost(), 0.0, 8192) == 8192
    assert high_step_tokens(UnknownCost(), 1.0, 8192) == 8192


def test_a_job_that_was_handed_off_does_not_shorten_the_steps_of_its_instance() -> None:
    jobs = [make_job(f"{ttft_s}", slo=Slo(ttft_s=ttft_s)) for ttft_s in (0.2, 1.0)]
    assert longest_ttft_s([make_job("a"), *jobs]) == 1.0
    assert longest_ttft_s([make_job("a")]) == 0.0


@UNTIMED
@given(target_s=st.floats(0.01, 1e5), most=st.integers(1, 20_000))
def test_it_is_one_of_those_tried_or_all_that_the_engine_allows(target_s: float, most: int) -> None:
    for tokens in (
        low_step_tokens(LinearCost(), asking(target_s), most),
        high_step_tokens(LinearCost(), target_s, most),
    ):
        assert tokens in {*TOKENS_TRIED, most}
        assert tokens <= most


def order(*jobs: Job) -> Arrival:
    found = Arrival()
    for job in jobs:
        found.add(job)
    return found


@pytest.mark.parametrize(("given_tokens", "budget"), [(None, 512), (64, 64), (9000, 8192)])
def test_both_pools_take_what_is_given_or_what_follows(given_tokens: int | None, budget: int) -> None:
    job = make_job("a", prompt=4000, slo=Slo(ttft_s=60.0, tbt_s=60.0))
    view = StepView(
        waiting=[job], free_blocks=1000, total_blocks=1000, max_run=8, max_resident=8, max_tokens=8192,
        admissible=lambda _: True,
    )  # fmt: skip
    for batching in (WithinBudgets, Elastic):
        plan = batching(LinearCost(), token_budget=given_tokens).plan(view, order(job), ())
        assert (plan.token_budget, list(plan.admit)) == (budget, [job])


def test_decodes_of_a_high_instance_are_not_cut() -> None:
    residents = [decoding(f"{number}", slo=Slo(tbt_s=0.01)) for number in range(300)]
    view = StepView(residents=residents, max_run=400, max_resident=400, max_tokens=8192)
    assert Elastic(LinearCost()).plan(view, order(), ()).token_budget == 8192


@pytest.mark.parametrize("batching", [WithinBudgets, Elastic])
def test_no_tokens_are_refused(batching: type[WithinBudgets | Elastic]) -> None:
    with pytest.raises(ConfigError, match="token_budget is 0; accepted: 1 or more tokens a step"):
        batching(token_budget=0)
