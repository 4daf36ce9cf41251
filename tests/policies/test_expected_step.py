"""A plan's work before it is filled, against the fill rule on an engine that has room for all."""

from __future__ import annotations

from headway.core.batch_shape import BatchShape
from headway.core.plan import StepPlan
from headway.core.view import StepView
from headway.policies.leaving.at_risk import expect_step
from tests.strategies import decoding, ids, make_job, prefilling

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
