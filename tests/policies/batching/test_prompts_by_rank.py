"""Prompts of a step in rank order: the longest ranks first here."""

from __future__ import annotations

from typing import Any

import pytest

from headway.core.job import Job, JobState
from headway.core.plan import StepOutcome, StepPlan
from headway.core.slo import Slo
from headway.core.view import StepView
from headway.policies.batching.paced import in_turn
from headway.policies.order.keyed import LongestPrompt
from headway.policies.order.on_time import OnTime
from tests.policies.order.per_token import PerToken
from tests.strategies import decoding, ids, make_job, prefilling

FIRST = make_job("first", prompt=100)


def ranked(begun: Job, *newcomers: Job, budget: int, **view: Any) -> StepPlan:
    """Two decodes and a prompt that has begun, beside newcomers; room for all of them, unless told otherwise."""
    residents = [decoding("x", limit=99), decoding("y", limit=99), begun]
    order = LongestPrompt()
    for job in (*residents, *newcomers):
        order.add(job)
    sizes: dict[str, Any] = {"max_run": 8, "max_resident": 8, "free_blocks": 99, **view}
    seen = StepView(residents=residents, waiting=newcomers, admissible=lambda job: True, **sizes)
    return in_turn(seen, StepPlan(run=residents, admit=newcomers, token_budget=budget), order)


def begun(left: int, computed: int = 10) -> Job:
    return prefilling("begun", prompt=left + computed, computed=computed)


def test_who_has_begun_gets_what_a_newcomer_before_it_leaves() -> None:
    # 150 less two decodes: 100 for the first, 48 of 60.
    job = begun(60)
    assert ranked(job, FIRST, budget=150).chunk_cap == {job: 48}


def test_it_pauses_where_that_is_nothing() -> None:
    assert ids(ranked(begun(60), FIRST, budget=80).run) == ["x", "y"]


def test_it_goes_on_where_it_ranks_first_or_there_is_enough_for_both() -> None:
    for job, budget in ((begun(60, computed=50), 150), (begun(60), 162)):
        plan = ranked(job, FIRST, budget=budget)
        assert (ids(plan.run), plan.chunk_cap) == (["x", "y", "begun"], {})


def test_what_the_prefix_cache_holds_of_a_newcomer_is_no_work() -> None:
    # Of 100 tokens it lacks 4: 64 are enough for both, and of 40 less two decodes 34 are left.
    cached = make_job("first", prompt=100, num_cached_tokens=96)
    assert ids(ranked(begun(58), cached, budget=64).run) == ["x", "y", "begun"]
    job = begun(58)
    assert ranked(job, cached, budget=40).chunk_cap == {job: 34}


def test_drafts_are_part_of_the_budget() -> None:
    # Two decodes with three drafts each are 8 tokens: 42 are left of 150.
    job = begun(60)
    assert ranked(job, FIRST, budget=150, tokens_a_decode=4).chunk_cap == {job: 42}


@pytest.mark.parametrize("short_of", [{"free_blocks": 12}, {"max_resident": 4}])
def test_a_newcomer_that_does_not_start_beside_the_first_holds_nobody_up(short_of: dict[str, int]) -> None:
    # Of 150 less two decodes and the first 48 are left: for the second, if it finds its 6 blocks, of 13, and a slot.
    second, job = make_job("second", prompt=90), begun(60)
    assert ids(ranked(job, FIRST, second, budget=150).run) == ["x", "y"]
    assert ranked(job, FIRST, second, budget=150, **short_of).chunk_cap == {job: 48}


# ---- without targets: what is due first ------------------------------------------------------------------


def in_order(*jobs: Job, now_s: float, budget: int = 11) -> StepPlan:
    """A step of newcomers in rank order of `on-time`, and of prompts that have begun, at a second a token."""
    order = OnTime(PerToken(), patience_s=1e9)
    for job in jobs:
        order.add(job)
    order.observe(StepOutcome(now_s=now_s, plan=StepPlan()))  # a step with nothing: the backlog is known
    residents = [job for job in jobs if job.state is JobState.RESIDENT]
    for job in residents:
        order.remove(job)
    newcomers = order.top(9, now_s)
    seen = StepView(
        now_s=now_s, residents=residents, waiting=newcomers, admissible=lambda job: True, max_run=8,
        max_resident=8, free_blocks=99, total_blocks=99,
    )  # fmt: skip
    return in_turn(seen, StepPlan(run=residents, admit=newcomers, token_budget=budget), order)


LONG = make_job("long", prompt=10)
"""Takes 10 s alone: due at 20 s. The others rank before it."""


def test_a_first_token_comes_first_once_it_has_waited_twice_as_long_as_prompts_alone_would_take() -> None:
    # The short one, of two tokens at 15 s, is due at 19 s; the late one at 21.5 s.
    short, late = make_job("short", prompt=2, arrival_s=15.0), make_job("late", prompt=1, arrival_s=19.5)
    assert ids(in_order(LONG, short, now_s=19.5).admit) == ["short", "long"]
    assert ids(in_order(LONG, short, now_s=20.5).admit) == ["short", "long"]
    assert ids(in_order(LONG, late, now_s=19.9).admit) == ["late", "long"]
    assert ids(in_order(LONG, late, now_s=20.5).admit) == ["long", "late"]


def test_what_is_due_takes_tokens_from_prompts_that_have_begun() -> None:
    begun_s = prefilling("begun", prompt=4, computed=2, arrival_s=19.0)
    # Of 11 tokens the newcomer has 10.
    assert in_order(LONG, begun_s, now_s=20.5).chunk_cap == {begun_s: 1}
    assert in_order(LONG, begun_s, now_s=19.5).chunk_cap == {}


def test_nothing_is_due_beside_jobs_with_targets_or_of_two_tenants() -> None:
    late, other = (make_job("late", prompt=1, arrival_s=19.5, tenant=tenant) for tenant in ("", "b"))
    timed = make_job("timed", prompt=1, arrival_s=19.7, slo=Slo(ttft_s=500.0))
    assert ids(in_order(LONG, late, timed, now_s=20.5).admit)[-1] == "long"
    assert ids(in_order(LONG, other, now_s=20.5).admit) == ["late", "long"]
