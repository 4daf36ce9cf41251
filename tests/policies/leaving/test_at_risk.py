"""A plan's work before it is filled, against the fill rule on an engine that has room for all."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batch_shape import BatchShape
from headway.core.job import Job
from headway.core.plan import Departure, StepPlan
from headway.core.slo import Slo
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.leaving.at_risk import AtRisk, expect_step
from headway.policies.policy import Policy
from headway.policies.presets import build_policy, find_preset
from tests.policies.contract import jobs_held_by
from tests.policies.instance import LinearCost
from tests.strategies import UNTIMED, decoding, ids, instants, make_job, prefilling, waiting_jobs

ENGINE = StepView(max_run=4, max_resident=4, max_tokens=64)


def test_by_hand() -> None:
    # A decode, 6 of p's 30 tokens by its cap, all 10 of a, and 3 of b's 10: 20 tokens. c is not reached.
    x, p = decoding("x"), prefilling("p", prompt=40, computed=10)
    a, b, c = (make_job(name) for name in "abc")
    plan = StepPlan(run=[x, p], admit=[a, b, c], token_budget=20, chunk_cap={p: 6})
    step = expect_step(ENGINE, plan)
    expected = BatchShape()
    for new, context in ((1, 10), (6, 10), (10, 0), (3, 0)):
        expected.add(new, context)
    assert step.shape == expected
    assert sorted(ids(step.starting)) == ["a", "b"]


def test_a_decode_takes_its_drafts_too() -> None:
    # 4 tokens each of x and y, as far as the budget goes: a gets the last, and b none.
    x, y, a, b = decoding("x"), decoding("y"), make_job("a"), make_job("b")
    view = StepView(residents=[x, y], max_run=4, max_resident=4, max_tokens=64, tokens_a_decode=4)
    step = expect_step(view, StepPlan(run=[x, y], admit=[a, b], token_budget=9))
    expected = BatchShape()
    for new, context in ((4, 10), (4, 10), (1, 0)):
        expected.add(new, context)
    assert (step.shape, ids(step.starting)) == (expected, ["a"])


def test_who_is_on_the_way_back_gets_nothing() -> None:
    back, x, a = decoding("back"), decoding("x"), make_job("a")
    view = StepView(residents=[back, x], restoring=[back], max_run=4, max_resident=4, max_tokens=64)
    step = expect_step(view, StepPlan(run=[back, x], admit=[a], token_budget=4))
    expected = BatchShape()
    expected.add(1, 10)
    expected.add(3, 0)
    assert step.shape == expected


def test_what_the_prefix_cache_holds_is_read_and_not_computed() -> None:
    jobs = [make_job(name, prompt=40, num_cached_tokens=32) for name in "ab"]
    step = expect_step(ENGINE, StepPlan(admit=jobs, token_budget=16))
    expected = BatchShape()
    expected.add(8, 32)
    expected.add(8, 32)
    assert (step.shape, sorted(ids(step.starting))) == (expected, ["a", "b"])


def test_seats_end_it_too() -> None:
    jobs, x = [make_job(name, prompt=1) for name in "abcdef"], decoding("x")
    view = StepView(residents=[x], max_run=3, max_resident=4)
    plan = StepPlan(run=[x], admit=jobs, token_budget=64)
    assert sorted(ids(expect_step(view, plan).starting)) == ["a", "b"]


def test_newcomers_take_the_places_of_those_that_pause() -> None:
    # Two run at a time and four may be resident: of three residents one runs, so one may start.
    x, y, z = (decoding(name) for name in "xyz")
    view = StepView(residents=[x, y, z], max_run=2, max_resident=4)
    plan = StepPlan(run=[x], admit=[make_job("a", prompt=1), make_job("b", prompt=1)], token_budget=64)
    assert ids(expect_step(view, plan).starting) == ["a"]


def test_whole_prompts_do_not_start_in_part() -> None:
    jobs = [make_job("a", prompt=40), make_job("b", prompt=40)]
    plan = StepPlan(admit=jobs, token_budget=64, whole_prompts=True)
    assert ids(expect_step(ENGINE, plan).starting) == ["a"]
    assert expect_step(ENGINE, plan).shape.num_tokens == 40


def test_a_whole_prompt_longer_than_a_step_starts_as_its_first_work_alone() -> None:
    # 64 tokens a step, one of which is x's: the 80 of a would start in a step of their own.
    x, a = decoding("x"), make_job("a", prompt=80)
    for run, starting in (([x], []), ([], ["a"])):
        plan = StepPlan(run=run, admit=[a], token_budget=64, whole_prompts=True)
        assert ids(expect_step(ENGINE, plan).starting) == starting


def test_a_whole_prompt_is_fitted_by_all_its_tokens_found_or_not() -> None:
    jobs = [make_job(name, prompt=40, num_cached_tokens=32) for name in "ab"]
    plan = StepPlan(admit=jobs, token_budget=64, whole_prompts=True)
    assert ids(expect_step(ENGINE, plan).starting) == ["a"]


IDLE = StepPlan(token_budget=64)


def view(now_s: float, **fields: Any) -> StepView:
    """An engine of 30 tokens a step."""
    return StepView(now_s=now_s, **{"max_run": 8, "max_resident": 8, "max_tokens": 30, **fields})


def watching(*jobs: Job, **settings: Any) -> AtRisk:
    """The rule with these jobs waiting."""
    rule = AtRisk(LinearCost(), **settings)
    for job in jobs:
        rule.add(job)
    return rule


def urgent(id_: str = "a", **fields: Any) -> Job:
    """10 tokens, due at 10 s: it has to start by 9 s, or elsewhere."""
    return make_job(id_, **{"slo": Slo(ttft_s=10.0), "may_move": True, **fields})


def left_at(now_s: float, rule: AtRisk, plan: StepPlan = IDLE) -> list[str]:
    """The jobs that leave at that time."""
    leaving = rule.leave_unserved(view(now_s), plan)
    assert set(leaving.values()) <= {Departure.HAND_OFF}
    return ids(leaving)


def test_it_leaves_when_the_next_chance_might_be_too_late() -> None:
    # It starts by 9 s. Elsewhere a step of 30 tokens has just begun: 3 s. Two decodes take 0.2 s here, and 0.05 of
    # 10 s is the margin. So it leaves from 9 - 3 - 0.2 - 0.5 = 5.3 s on.
    plan = StepPlan(run=[decoding("x"), decoding("y")], token_budget=64)
    rule = watching(urgent())
    assert left_at(5.29, rule, plan) == []
    assert left_at(5.31, rule, plan) == ["a"]


def test_one_that_is_late_wherever_it_goes_stays() -> None:
    rule = watching(urgent())
    assert left_at(9.0, rule) == ["a"]
    assert left_at(9.01, rule) == []


def test_threshold_and_the_steps_elsewhere_may_be_set() -> None:
    # By 9 s, less a step of 10 tokens, and 2 s more or less.
    assert left_at(6.01, watching(urgent(), threshold=0.2, hp_tokens=10)) == ["a"]
    assert left_at(5.99, watching(urgent(), threshold=0.2, hp_tokens=10)) == []
    assert left_at(9.0, watching(urgent(), threshold=-0.2, hp_tokens=10)) == []
    assert left_at(9.0, watching(urgent(), threshold=-0.09, hp_tokens=10)) == ["a"]


def test_while_nothing_is_known_of_steps_the_threshold_alone_decides() -> None:
    rule = AtRisk()
    rule.add(urgent())
    assert left_at(9.49, rule) == []
    assert left_at(9.5, rule) == ["a"]


def test_who_starts_in_this_step_stays_and_spares_of_the_plan_leave() -> None:
    # 25 tokens: a's 10, b's 10 and 5 of c's are in this step; d is not.
    jobs = [urgent(name) for name in "abcd"]
    plan = StepPlan(admit=jobs, token_budget=25)
    assert left_at(8.0, watching(*jobs), plan) == ["d"]


@pytest.mark.parametrize(
    "job",
    [
        urgent(may_move=False),
        urgent(first_scheduled_s=1.0),
        make_job(may_move=True),
        urgent(slo=Slo(deadline_s=10.0, tbt_s=1.0)),
        urgent(num_output_tokens=1),
    ],
    ids=["may not move", "has started", "no targets", "other targets", "has a token"],
)
def test_others_are_never_watched(job: Job) -> None:
    rule = watching(job)
    assert not jobs_held_by(rule)
    assert left_at(8.0, rule) == []
    rule.remove(job)


def test_who_leaves_is_planned_to_leave_and_starts_nowhere() -> None:
    # The order admits both; the step has tokens for a alone.
    policy: Policy = build_policy(find_preset("vllm", leaving=("at-risk", "expired")), LinearCost())
    a, b = urgent("a", prompt=30), urgent("b", prompt=30)
    for job in (a, b):
        policy.add(job)
    plan = policy.plan(view(3.9, waiting=[a, b]))
    assert (ids(plan.admit), plan.leave) == (["a"], {b: Departure.HAND_OFF})


def test_the_longest_step_elsewhere_is_an_engines_not_an_lp_instances() -> None:
    # As in the first test, though this instance computes 8 tokens a step at most: HP has the 30 that engines allow.
    low = find_preset("ascendra-lp", batching="within-budgets:token_budget=8")
    for now_s, leaving in [(5.29, []), (5.31, ["a"])]:
        policy = build_policy(low, LinearCost())
        job, residents = urgent(), [decoding("x"), decoding("y")]
        for each in (job, *residents):
            policy.add(each)
        plan = policy.plan(view(now_s, waiting=[job], residents=residents, max_resident=2))
        assert ids(plan.leave) == leaving


def left_with(now_s: float, rule: AtRisk, *tokens: int, told_s: float | None = None) -> list[str]:
    """The jobs that leave at that time, where this many tokens wait at each other instance."""
    seen = view(now_s, waiting_elsewhere=list(tokens), told_elsewhere_s=now_s if told_s is None else told_s)
    return ids(rule.leave_unserved(seen, IDLE))


def test_a_job_that_the_queue_elsewhere_makes_late_stays() -> None:
    # At 5.6 s it has 3.4 s of slack. A step of 30 tokens there, 3 s, leaves 0.4 s for what waits before it.
    for tokens, leaving in [((3,), ["a"]), ((5,), []), ((50, 3), ["a"]), ((50, 5), [])]:
        assert left_with(5.6, watching(urgent()), *tokens) == leaving


def test_where_no_job_waits_elsewhere_the_slack_alone_decides() -> None:
    # With 1 s of slack a step of 3 s may make it late, but none may be under way.
    assert left_with(8.0, watching(urgent()), 0) == ["a"]
    assert left_with(8.0, watching(urgent()), 1) == []
    assert left_with(8.0, watching(urgent())) == ["a"]  # nothing was told


def test_what_waited_when_it_was_told_has_been_worked_off_since() -> None:
    # 23 tokens 2 s ago are 3 now, and of 25 5 are left.
    assert left_with(5.6, watching(urgent()), 23, told_s=3.6) == ["a"]
    assert left_with(5.6, watching(urgent()), 25, told_s=3.6) == []


def test_each_that_leaves_is_before_the_next_one_elsewhere() -> None:
    # Each has 10 tokens, and is behind those that went before it: a takes the one empty queue, b the other.
    jobs = [urgent(name) for name in "abc"]
    assert left_with(5.6, watching(*jobs), 0) == ["a"]
    assert left_with(5.6, watching(*jobs), 0, 0) == ["a", "b"]
    assert left_with(5.6, watching(*jobs), 0, 4, 9) == ["a", "b"]
    assert left_with(5.6, watching(*jobs)) == ["a", "b", "c"]


def test_the_longest_step_elsewhere_keeps_the_target_for_first_token() -> None:
    # An engine of 8,192 tokens a step. 0.1 s a token: of the budgets tried 256 tokens, 25.6 s, keep 30 s.
    rule = watching(urgent(slo=Slo(ttft_s=30.0)), threshold=0.0)
    plan = StepPlan(token_budget=64)
    for now_s, leaving in [(3.39, []), (3.41, ["a"])]:  # 30 - 1 - 25.6
        assert ids(rule.leave_unserved(view(now_s, max_tokens=8192), plan)) == leaving


def test_a_rule_that_looks_first_decides_first() -> None:
    # Due, and too old for the queue: it is shed before anybody looks whether it is at risk.
    policy = build_policy(find_preset("vllm", leaving=("at-risk", "queue-bound:max_age_s=1")), LinearCost())
    job = urgent()
    policy.add(job)
    assert policy.plan(view(8.0, waiting=[job], residents=[decoding(f"{n}") for n in range(8)])).leave == {
        job: Departure.SHED
    }


def test_the_plan_may_change_while_somebody_can_still_be_in_time() -> None:
    rule = watching(urgent())
    assert [rule.next_change_s(view(now_s)) for now_s in (0.0, 9.0, 9.01)] == [-inf, -inf, inf]
    assert watching().next_change_s(view(0.0)) == inf


@pytest.mark.parametrize("threshold", [-1.0, 1.0, 5.0])
def test_a_threshold_that_is_no_share_is_refused(threshold: float) -> None:
    with pytest.raises(ConfigError, match="accepted: a share of the target between -1 and 1"):
        AtRisk(threshold=threshold)


def test_no_tokens_elsewhere_are_refused() -> None:
    with pytest.raises(ConfigError, match="hp_tokens is 0; accepted: 1 or more tokens a step"):
        AtRisk(hp_tokens=0)


@UNTIMED
@given(jobs=waiting_jobs(), now_s=instants, threshold=st.sampled_from([-0.1, 0.0, 0.05, 0.3]))
def test_exactly_those_at_risk_leave(jobs: list[Job], now_s: float, threshold: float) -> None:
    for number, job in enumerate(jobs):
        job.may_move = number % 3 > 0
    rule = watching(*jobs, threshold=threshold)

    def at_risk(job: Job) -> bool:
        if job.ttft_deadline_s is None or job.slo.ttft_s is None or not job.may_move:
            return False
        latest_start_s = job.ttft_deadline_s - 0.1 * job.num_tokens
        return now_s <= latest_start_s <= now_s + 3.0 + threshold * job.slo.ttft_s

    assert set(rule.leave_unserved(view(now_s), IDLE)) == {job for job in jobs if at_risk(job)}
    for job in jobs:
        rule.remove(job)
    assert not jobs_held_by(rule)


def test_the_less_is_sure_the_earlier_it_leaves() -> None:
    # What a step stays within, with a probability of 0.75, is one and a half times what is likeliest. Its own 1 s
    # counts as 1.5, so it starts by 8.5 s; a step of 3 s elsewhere as 4.5: from 4 s on, without a margin.
    assert left_at(4.01, watching(urgent(), threshold=0.0, confidence=0.75)) == ["a"]
    assert left_at(3.99, watching(urgent(), threshold=0.0, confidence=0.75)) == []
    assert left_at(4.01, watching(urgent(), threshold=0.0)) == []  # 10 - 1 - 3 = 6 s


@pytest.mark.parametrize("confidence", [0.0, 1.0, -1.0])
def test_a_confidence_that_is_none_is_refused(confidence: float) -> None:
    with pytest.raises(ConfigError, match=r"confidence is .*; accepted: a probability between 0 and 1"):
        AtRisk(confidence=confidence)
