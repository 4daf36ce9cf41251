"""The longest permitted step, by hand: a tenth of a second a token (`LinearCost`), blocks of 4."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batch_shape import BatchShape
from headway.core.job import Job
from headway.core.plan import StepOutcome, StepPlan
from headway.core.plan_check import check_plan
from headway.core.slo import NO_TARGETS, Slo
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.batching.paced import SAFE_BUDGET_TOKENS, Paced
from headway.policies.batching.top_jobs import TopJobs
from headway.policies.leaving.at_risk import expect_step
from headway.policies.order.keyed import ShortestPrompt
from headway.policies.order.on_time import OnTime
from tests.policies.batching.scene import Scene, timed
from tests.policies.batching.test_mixed_step import Graphed, SharedKernel
from tests.policies.instance import LinearCost, ReadingCost
from tests.strategies import UNTIMED, decoding, ids, ledger_of, make_job, prefilling


def scene(residents: list[Job], *, settings: dict[str, Any] | None = None, **view: Any) -> Scene:
    """Steps of up to 640 tokens, as long as they come, and all of a target may be used, unless told otherwise."""
    batching = Paced(LinearCost(), **{"share": 1.0, "short_steps": False, **(settings or {})})
    return Scene(
        batching,
        residents=residents,
        **{
            "free_blocks": 400,
            "total_blocks": 900,
            "max_tokens": 640,
            "max_run": 16,
            "max_resident": 16,
            **view,
        },
    )


def test_prompts_get_the_time_that_the_tightest_target_leaves() -> None:
    # 10 s are 100 tokens: two decodes and 98 of a prompt, which to the grain of 16 are 96.
    plan = scene([timed("x", 10.0), timed("y", 30.0)]).wait(make_job("a", prompt=500)).plan()
    assert (ids(plan.run), ids(plan.admit), plan.token_budget) == (["x", "y"], ["a"], 98)


def test_the_safe_budget_has_a_token_for_every_decode_and_a_little_of_prompts() -> None:
    # 600 tokens take 60 s whoever pauses: nobody's 0.01 s can be kept.
    many = [timed(str(number), 0.01) for number in range(600)]
    at = scene(many, max_run=600, max_resident=600, free_blocks=900, total_blocks=9000)
    assert at.plan().token_budget == 600 + 16 > SAFE_BUDGET_TOKENS


@pytest.mark.parametrize(("tbt_s", "budget"), [(10.0, 8 + 80), (0.01, 512)])
def test_drafts_have_room_in_the_budget(tbt_s: float, budget: int) -> None:
    # Two decodes and three drafts each are 8 tokens: within 10 s 92 more, which to the grain of 16 are 80.
    at = scene([timed("x", tbt_s), timed("y", 30.0)], tokens_a_decode=4)
    assert at.wait(make_job("a", prompt=500)).plan().token_budget == budget


@pytest.mark.parametrize(
    "residents",
    [[decoding("x")], [prefilling("x", prompt=500, slo=Slo(tbt_s=1.0))], []],
    ids=["no target", "no tokens yet", "nobody"],
)
def test_without_a_target_to_keep_the_budget_is_the_engines(residents: list[Job]) -> None:
    assert scene(residents).wait(make_job("a", prompt=500)).plan().token_budget == 640


def test_what_fits_is_left_as_it_is() -> None:
    at = scene([timed("x", 60.0)]).wait(make_job("a", prompt=500))
    assert at.plan() == TopJobs().plan(at.view, at.order, ())


@pytest.mark.parametrize(("more_s", "graphed", "budget"), [(3.0, 512, 512), (0.0, 512, 1000), (3.0, 0, 1000)])
def test_with_a_target_too_steps_are_what_cuda_graphs_hold_if_prompts_are_sooner_so(
    more_s: float, graphed: int, budget: int
) -> None:
    # Beside one decode 700 tokens take 12.01 s of the 20 there are, or 9.01; 511 take 7.12. Without graphs: 700.
    at = Scene(
        Paced(Graphed(more_s), share=1.0),
        residents=[timed("x", 20.0)],
        free_blocks=400,
        total_blocks=900,
        max_tokens=1000,
        graphed_tokens=graphed,
    )
    assert at.wait(make_job("a", prompt=700)).plan().token_budget == budget


def test_prompts_share_what_there_is_in_rank_order() -> None:
    # 64 tokens of prompts: b, who has begun, lacks 40; c gets what is left.
    residents = [timed("x", 6.6), prefilling("b", prompt=50, computed=10)]
    plan = scene(residents).wait(make_job("c", prompt=500)).plan()
    assert (ids(plan.run), plan.token_budget) == (["x", "b"], 65)
    view = StepView(max_run=16, max_resident=16, residents=residents)
    assert expect_step(view, plan).shape.num_tokens == 65


def carried_out(plan: StepPlan, *, starts: bool = True) -> StepOutcome:
    """The outcome of a plan, with newcomers or without: jobs have computed the tokens they were granted."""
    tokens: dict[Job, int] = {}
    left = plan.token_budget
    for job in (*plan.run, *(plan.admit if starts else ())):
        granted = min(left, job.num_tokens - job.num_computed_tokens)
        if granted:
            tokens[replace(job, num_computed_tokens=job.num_computed_tokens + granted)] = granted
            left -= granted
    return StepOutcome(now_s=0.0, plan=plan, tokens=tokens, num_tokens=sum(tokens.values()))


def after(at: Scene, steps: int) -> StepPlan:
    """The plan once so many were carried out, each as planned; who runs and waits stays as it is."""
    for _ in range(steps):
        at.batching.observe(carried_out(at.plan()))
    return at.plan()


def test_where_there_is_no_time_for_prompts_decodes_save_up_for_them() -> None:
    # 2 s are 20 tokens; with 15 decodes 5 are left, less than the 16 that are the least. Three times that are 60, so
    # 45 tokens of the prompt, to the grain 32. Such a step takes 4.7 s, 2.7 more than 2, and decodes leave 0.5 each.
    at = scene([timed(f"x{n:02}", 2.0) for n in range(15)]).wait(make_job("a", prompt=500))
    saving = after(at, 5)
    assert (len(saving.run), saving.admit, saving.token_budget) == (15, (), 15)
    paid = after(at, 1)
    assert (len(paid.run), ids(paid.admit), paid.token_budget) == (15, ["a"], 15 + 32)
    # Of 3 s that were saved 0.3 are left: five times 0.5 more.
    assert not after(at, 5).admit
    assert after(at, 1).admit


def test_what_was_saved_is_not_spent_on_a_prompt_that_does_not_start() -> None:
    at = scene([timed(f"x{n:02}", 2.0) for n in range(15)]).wait(make_job("a", prompt=500))
    assert after(at, 6).admit
    for _ in range(5):
        plan = at.plan()
        assert plan.admit
        at.batching.observe(carried_out(plan, starts=False))  # it has no room yet
    at.batching.observe(StepOutcome(now_s=0.0, plan=StepPlan()))  # nor is there a step between two
    assert at.plan().admit
    assert not after(at, 1).admit


def test_without_saving_a_little_of_a_prompt_always_goes_through() -> None:
    residents = [timed(f"x{n:02}", 2.0) for n in range(15)]
    at = scene(residents, settings={"saving": False}).wait(make_job("a", prompt=500))
    assert at.plan().token_budget == 15 + 16


class Tiles(LinearCost):
    """A GPU's: 50 tokens of prompts take no longer than one."""

    def step_s(self, shape: BatchShape) -> float:
        return 1.0 + 10.0 * -(-shape.num_prefill_tokens // 50)


def test_where_the_least_of_a_prompt_takes_too_long_as_much_as_takes_no_longer_is_paid_with_all_that_can_be_saved() -> (
    None
):
    # 16 tokens take 11 s, as do up to 48; 2 s, of which decodes leave one, cannot save more than 4.
    at = Scene(
        Paced(Tiles(), share=1.0),
        residents=[timed("x", 2.0)],
        free_blocks=400,
        total_blocks=900,
        max_tokens=640,
        max_run=9,
    ).wait(make_job("a", prompt=500))
    assert after(at, 3).token_budget == 1
    assert after(at, 1).token_budget == 1 + 48
    # Of the rest of it 4 s are owed: eight steps later there are 4 s again.
    assert after(at, 8).token_budget == 1
    assert after(at, 1).token_budget == 1 + 48


def test_where_the_whole_of_a_target_is_enough_the_fewest_go_through_and_no_more() -> None:
    # Half of 4 s are 20 tokens, of which 10 are decodes: 16 more take 2.6 s, which is within 4.
    residents = [timed(f"x{n}", 4.0) for n in range(10)]
    at = scene(residents, settings={"share": 0.5}).wait(make_job("a", prompt=500))
    assert at.plan().token_budget == 10 + 16
    # Of 2 s even those are too long, and 10 decodes take half of it: none goes through while they last.
    at = scene([timed(f"x{n}", 2.0) for n in range(10)], settings={"share": 0.5}).wait(
        make_job("a", prompt=500)
    )
    assert after(at, 99).token_budget == 10


def test_where_decodes_alone_take_too_long_those_without_a_target_pause() -> None:
    # 1.05 s are 10 tokens: the three in a hurry and seven others, the first in rank; nobody starts.
    others = [decoding(f"o{n:02}", arrival_s=float(n)) for n in range(12)]
    hurried = [timed(f"x{n}", 1.05, arrival_s=20.0) for n in range(3)]
    at = scene([*others, *hurried], max_run=20, max_resident=20).wait(make_job("a", prompt=50))
    plan = at.plan()
    assert ids(plan.run) == ["x0", "x1", "x2", *(f"o{n:02}" for n in range(7))]
    assert not plan.admit
    # For a prompt that has begun they leave three tenths, and save: 16 tokens beside seven decodes take 2.3 s.
    at.view.residents = [*others, *hurried, prefilling("b", prompt=500, computed=100)]
    assert (after(at, 3).token_budget, len(at.plan().run)) == (7, 7)
    assert (after(at, 1).token_budget, len(at.plan().run)) == (7 + 16, 8)


def knowing(residents: list[Job], *newcomers: Job, **view: Any) -> Scene:
    """A scene whose order knows who can be in time; nobody is late yet at 1 s."""
    order = OnTime(LinearCost(), patience_s=1e9)
    for job in residents:
        order.add(job)
        order.remove(job)
    at = scene(residents, max_run=40, max_resident=40, **view)
    at.order = order  # type: ignore[assignment]
    at.view.now_s = 1.0
    return at.wait(*newcomers)


def test_prompts_in_time_have_three_tenths_of_the_step_from_decodes_that_can_wait() -> None:
    # 3.05 s are 30 tokens, and there are 28 decodes: 21 of them, so that 0.95 s are left. With the whole prompt of 50
    # a step takes 7.1 s, less than three times 3.05, and 4.05 more than it: five times 0.95.
    others = [decoding(f"o{n:02}", arrival_s=float(n) / 100) for n in range(26)]
    hurried = [timed(f"x{n}", 3.05, first_token_s=1.0) for n in range(2)]
    urgent, late = (
        make_job(name, prompt=50, slo=Slo(ttft_s=ttft_s)) for name, ttft_s in (("a", 500.0), ("z", 0.1))
    )
    at = knowing([*others, *hurried], urgent, late)
    plan = after(at, 4)
    assert (len(plan.run), plan.admit, plan.token_budget) == (21, (), 21)
    assert {"x0", "x1"} < set(ids(plan.run))
    plan = after(at, 1)
    assert (len(plan.run), ids(plan.admit), plan.token_budget) == (21, ["a"], 640)
    # Without one in time nobody pauses: all the decodes take less than the whole step.
    assert len(knowing([*others, *hurried], late).plan().run) == 28


def test_for_prompts_that_somebody_waits_for_decodes_save_up_where_that_is_faster() -> None:
    # As in `test_saved_time`: 16 tokens take 5.8 of 6 s, 128 take 17, which three steps of decodes of 2.2 s pay for.
    residents = [timed(f"x{n}", 6.0, first_token_s=1.0) for n in range(2)]

    def beside(slo: Slo) -> Scene:
        at = knowing(residents, make_job("a", prompt=500, slo=slo))
        at.batching = Paced(SharedKernel(), share=1.0)
        return at

    waited_for = beside(Slo(ttft_s=900.0))
    assert (waited_for.plan().admit, waited_for.plan().token_budget) == ((), 2)
    assert not after(waited_for, 2).admit
    assert (ids(after(waited_for, 1).admit), waited_for.plan().token_budget) == (["a"], 2 + 128)
    # Nobody waits for it, or it is late already: then no stream is held up.
    for slo in (NO_TARGETS, Slo(ttft_s=0.1), Slo(deadline_s=9000.0)):
        assert (ids(beside(slo).plan().admit), beside(slo).plan().token_budget) == (["a"], 2 + 16)


@pytest.mark.parametrize(("prompts", "free_blocks", "budget"), [(3, 500, 3), (4, 500, 512), (4, 499, 3)])
def test_few_in_a_hurry_do_not_make_more_prompts_late(prompts: int, free_blocks: int, budget: int) -> None:
    # Three take 0.3 of 0.35 s. Of prompts count those that there is room for: at least as many, or the three go on.
    hurried = [timed(f"x{n}", 0.35, first_token_s=1.0) for n in range(3)]
    newcomers = [make_job(f"a{n}", prompt=500, slo=Slo(ttft_s=900.0)) for n in range(prompts)]
    plan = knowing(hurried, *newcomers, free_blocks=free_blocks).plan()
    assert (len(plan.run), plan.token_budget) == (3, budget)


def test_where_drafts_are_right_a_step_may_be_so_many_times_as_long() -> None:
    # 0.5 s are 5 tokens: a decode with its draft, which saves up for a prompt. Where a step brings 16 tokens of a
    # longer decode, 8 s are 80: 64 in whole grains.
    for tokens_a_decode, decoded_tokens, budget in ((2, 1.0, 2), (16, 16.0, 16 + 64), (16, 8.0, 16 + 16)):
        at = scene([timed("x", 0.5)], tokens_a_decode=tokens_a_decode, decoded_tokens=decoded_tokens)
        assert at.wait(make_job("a", prompt=500)).plan().token_budget == budget


def test_the_only_decode_does_not_pause_for_prompts_without_room() -> None:
    # Half of 0.25 s are 0.125: its step takes 0.1, more than seven tenths of that. It is far ahead, and a has no block.
    alone, newcomer = timed("x", 0.25, first_token_s=1.0), make_job("a", prompt=500, slo=Slo(ttft_s=900.0))
    at = knowing([alone], newcomer, settings={"share": 0.5}, free_blocks=0).admissible(lambda job: False)
    assert ids(at.plan().run) == ["x"]


def test_a_late_answer_keeps_its_pace_and_pauses_for_nobody() -> None:
    # 40 of at most 41 tokens took 400 s; at 1 s a token they were due at 39. 1 s is 10 tokens, and there are 11.
    late = timed("late", 1.0, output=40, limit=41)
    hurried = [timed(f"x{n}", 1.0, output=2, limit=40, first_token_s=399.0) for n in range(10)]
    order = OnTime(LinearCost())
    at = scene([late])
    at.order = order  # type: ignore[assignment]
    for job in [late, *hurried]:
        order.add(job)
        order.remove(job)
    at.view.now_s = 400.0
    assert at.wait(make_job("a", prompt=500, arrival_s=400.0)).plan().token_budget == 1
    # Whoever reads it would otherwise wait until all the others have ended.
    at.view.residents = [late, *hurried]
    assert len(at.plan().run) == 11


def test_a_target_that_no_pause_would_keep_changes_little() -> None:
    plan = scene([timed(f"x{n:02}", 1.0) for n in range(12)]).wait(make_job("a", prompt=600)).plan()
    assert (len(plan.run), ids(plan.admit), plan.token_budget) == (12, ["a"], SAFE_BUDGET_TOKENS)


def test_a_safe_budget_while_step_times_are_not_to_be_trusted() -> None:
    order = OnTime(LinearCost())
    for _ in range(99):
        order.steps.observe(1.0, 3.0)
    at = scene([timed("x", 10.0)])
    at.order = order  # type: ignore[assignment]
    order.add(at.view.residents[0])
    order.remove(at.view.residents[0])
    assert at.plan().token_budget == SAFE_BUDGET_TOKENS == 512
    assert scene([decoding("x")]).plan().token_budget == 640


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"share": 0.0}, "share is 0.0; accepted: a share of the target above 0, at most 1"),
        ({"share": 1.5}, "share is 1.5"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Paced(**settings)


def test_a_plan_lasts_half_the_time_of_64_steps_that_keep_the_target_to_the_last() -> None:
    # A step reads the KV of both: 0.1 s a token, and 1 ms for each token of the contexts, 40 and then 41 each.
    def until_s(longest_s: float) -> float:
        residents = [timed("x", longest_s, prompt=40, output=1), decoding("y", prompt=40, output=1)]
        return Paced(ReadingCost(), share=1.0).next_change_s(StepView(now_s=7.0, residents=residents))

    # Now 0.2 + 0.082 = 0.282 s; in 64 steps 0.2 + 0.210 = 0.410 s.
    assert until_s(0.411) == pytest.approx(7.0 + 64 * 0.282 / 2)
    assert until_s(0.409) == -inf
    assert Paced().next_change_s(StepView(residents=[timed("x", 1.0)])) == -inf
    assert Paced().next_change_s(StepView(residents=[decoding("x")])) == inf


@UNTIMED
@given(
    targets=st.lists(st.sampled_from([None, 0.5, 2.0, 9.0]), min_size=1, max_size=9),
    prompts=st.lists(st.integers(1, 300), max_size=4),
)
def test_while_nothing_is_saved_no_step_is_predicted_to_be_longer_than_a_token_may_take(
    targets: list[float | None], prompts: list[int]
) -> None:
    residents = [
        decoding(f"x{n}") if tbt_s is None else timed(f"x{n}", tbt_s) for n, tbt_s in enumerate(targets)
    ]
    at = scene(residents).wait(*(make_job(f"w{n}", prompt=prompt) for n, prompt in enumerate(prompts)))
    plan: StepPlan = at.plan()
    check_plan(plan, at.view, ledger_of(at.view))
    tightest_s = min((tbt_s for tbt_s in targets if tbt_s), default=inf)
    hurried = [job for job in plan.run if job.slo.tbt_s]
    predicted_s = LinearCost().step_s(expect_step(at.view, plan).shape)
    if 0.1 * len(hurried) <= tightest_s:
        assert predicted_s <= tightest_s + 1e-9
    assert len(hurried) == sum(tbt_s is not None for tbt_s in targets)


def test_a_long_prompt_that_has_begun_makes_way_for_a_short_one_that_ranks_before_it() -> None:
    # Steps of 64 tokens, by prompt length: 60 for the short newcomer, 4 for the long one that has begun.
    long = prefilling("long", prompt=600, computed=100)
    at = scene([long], max_tokens=64)
    at.order = ShortestPrompt()  # type: ignore[assignment]
    at.order.add(long)
    at.order.remove(long)
    plan = at.wait(make_job("short", prompt=60)).plan()
    assert (ids(plan.run), ids(plan.admit)) == (["long"], ["short"])
    assert {job.id: cap for job, cap in plan.chunk_cap.items()} == {"long": 4}
    # Where the short one takes it all, the long one pauses; where it cannot start, nothing changes.
    at.view.max_tokens = 60
    assert (ids(at.plan().run), ids(at.plan().admit)) == ([], ["short"])
    assert ids(at.admissible(lambda job: False).plan().run) == ["long"]


def test_one_of_a_slower_pace_that_is_ahead_of_it_may_pause() -> None:
    # 1 s is 10 tokens. The patient, at 2 s a token, have brought 2 of 40 tokens by 1 s: far ahead.
    order = OnTime(LinearCost())
    patient = [timed(f"p{n:02}", 2.0, output=2, limit=40, arrival_s=float(n)) for n in range(12)]
    hurried = [timed(f"x{n}", 1.0, output=2, limit=40) for n in range(3)]
    at = scene([*patient, *hurried])
    at.order = order  # type: ignore[assignment]
    for job in [*patient, *hurried]:
        order.add(job)
        order.remove(job)
    at.view.now_s = 1.0
    ran = ids(at.plan().run)
    assert len(ran) == 10
    assert {"x0", "x1", "x2"} < set(ran)


def test_where_decodes_have_all_of_the_engines_tokens_prompts_in_time_wait() -> None:
    at = knowing([timed(f"x{n}", 100.0, first_token_s=1.0) for n in range(10)], max_tokens=10)
    plan = at.wait(make_job("a", prompt=50, slo=Slo(ttft_s=900.0))).plan()
    assert (len(plan.run), plan.token_budget) == (10, 10)
