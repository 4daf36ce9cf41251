from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.cost import CostModel
from headway.core.job import Job
from headway.core.plan import StepPlan
from headway.core.slo import Slo
from headway.core.view import StepView
from headway.engine.step.steady_plan import SteadyPlan
from headway.policies.policy import Policy
from headway.policies.presets import build_policy, find_preset
from tests.policies.instance import ReadingCost
from tests.predict.shapes import batch
from tests.strategies import UNTIMED, decoding, make_job, prefilling

RESIDENTS = [decoding("a"), decoding("b")]


def view(residents: Sequence[Job] = RESIDENTS, **fields: Any) -> StepView:
    """A small engine, a block for each of its residents to grow into."""
    sizes: dict[str, Any] = {
        "max_run": 4,
        "max_resident": 4,
        "max_tokens": 64,
        "free_blocks": 2,
        "total_blocks": 9,
    }
    return StepView(residents=residents, **{**sizes, **fields})


def policy_with(*residents: Job, name: str = "headway", cost: CostModel | None = None) -> Policy:
    """A policy to which these came."""
    policy = build_policy(find_preset(name), cost)
    for job in residents:
        policy.order.add(job)
        policy.order.remove(job)
    return policy


def noted(now: StepView, name: str = "headway") -> SteadyPlan:
    """After the policy has planned for a view."""
    steady, policy = SteadyPlan(), policy_with(*now.residents, name=name)
    steady.note(policy.plan(now), now, policy)
    return steady


@pytest.mark.parametrize("name", ["vllm", "headway", "fastserve"])
def test_where_all_decode_and_nobody_waits_the_plan_holds(name: str) -> None:
    found = noted(view(), name).again(view(now_s=5.0))
    assert found is not None
    assert found.run is RESIDENTS


@pytest.mark.parametrize(
    "changed",
    [
        view(list(RESIDENTS)),  # somebody joined or ended: it is another list
        view(waiting=[make_job("new")]),
        view(swapped=[make_job("back")]),
        view(returned=[RESIDENTS[0]]),
        view(free_blocks=1),
    ],
    ids=["others", "waiting", "swapped", "returned", "blocks"],
)
def test_it_does_not_hold_once_something_has_happened(changed: StepView) -> None:
    assert noted(view()).again(changed) is None


@pytest.mark.parametrize(
    "now",
    [
        view([decoding("a"), prefilling(computed=1)]),
        view([decoding("a"), decoding("b"), decoding("c")], max_run=2),
        view([decoding("a", slo=Slo(tbt_s=0.1))]),  # nobody knows how long its steps are
    ],
    ids=["prompt", "paused", "unpaced"],
)
def test_some_plans_hold_for_a_step_alone(now: StepView) -> None:
    assert noted(now).again(now) is None


def test_it_holds_until_the_policy_says() -> None:
    class Changing(Policy):
        def same_plan_until_s(self, view: StepView) -> float:
            return 3.0

    parts = policy_with(*RESIDENTS)
    changing = Changing("changing", parts.order, parts.batching, parts.eviction)
    steady = SteadyPlan()
    steady.note(changing.plan(view()), view(), changing)
    assert steady.again(view(now_s=3.0)) is not None
    assert steady.again(view(now_s=3.1)) is None


@UNTIMED
@given(
    count=st.integers(1, 4),
    deadline_s=st.sampled_from([None, 0.5, 90.0]),
    grown=st.integers(1, 300),
    later_s=st.floats(0.0, 100.0),
    free_blocks=st.integers(0, 8),
    name=st.sampled_from(["vllm", "headway", "fastserve", "edf"]),
)
def test_what_holds_is_what_would_be_planned(
    count: int, deadline_s: float | None, grown: int, later_s: float, free_blocks: int, name: str
) -> None:
    residents = [
        decoding(f"{n}", output=1 + n, limit=900, slo=Slo(deadline_s=deadline_s)) for n in range(count)
    ]
    policy, steady = policy_with(*residents, name=name), SteadyPlan()
    first = view(residents, free_blocks=8)
    steady.note(policy.plan(first), first, policy)
    for job in residents:
        job.num_output_tokens += grown
        job.num_computed_tokens += grown
    later = view(residents, free_blocks=free_blocks, now_s=later_s)
    held, made = steady.again(later), policy.plan(later)
    assert held is None or set(held.run) == set(made.run)
    assert held is None or without_run(held) == without_run(made)
    if name.startswith(("vllm", "headway")):  # for which time and length alone change nothing
        assert (held is not None) is (free_blocks >= count)


@UNTIMED
@given(
    count=st.integers(1, 4),
    tbt_s=st.floats(0.2, 1.5),
    patient=st.booleans(),
    times_predicted=st.floats(0.5, 3.0),
)
def test_what_holds_beside_a_target_between_tokens_is_what_would_be_planned(
    count: int, tbt_s: float, patient: bool, times_predicted: float
) -> None:
    residents = [decoding(f"{n}", limit=900, slo=Slo(tbt_s=tbt_s)) for n in range(count)]
    residents += [decoding("patient", limit=900, slo=Slo(tbt_s=9 * tbt_s))] if patient else []
    cost = ReadingCost()
    policy = policy_with(*residents, cost=cost)
    steady, free_blocks, now_s = SteadyPlan(), 8, 0.0
    first = view(residents, free_blocks=free_blocks, max_run=8)
    steady.note(policy.plan(first), first, policy)
    for _ in range(200):
        now_s += times_predicted * cost.step_s(batch(*((1, job.num_computed_tokens) for job in residents)))
        for job in residents:
            job.num_output_tokens += 1
            job.num_computed_tokens += 1
        later = view(residents, free_blocks=free_blocks, max_run=8, now_s=now_s)
        held, made = steady.again(later), policy.plan(later)
        if held is None:
            break
        assert (held.run, without_run(held)) == (made.run, without_run(made))
    else:
        pytest.fail("a plan that is not made for 200 steps")


def without_run(plan: StepPlan) -> tuple[Any, ...]:
    """A plan's content except the order in which its residents run."""
    return (
        list(plan.admit),
        plan.preempt,
        plan.leave,
        plan.offload,
        plan.prefetch,
        plan.token_budget,
        plan.chunk_cap,
    )


def test_a_plan_with_fewer_tokens_than_decodes_does_not_hold_for_the_engine_has_more() -> None:
    policy, now = policy_with(*RESIDENTS, name="vllm"), view()
    plan = policy.plan(now)
    for tokens, holds in ((2, True), (1, False)):
        plan.token_budget = tokens
        steady = SteadyPlan()
        steady.note(plan, now, policy)
        assert (steady.again(now) is not None) is holds
