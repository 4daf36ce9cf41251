"""Prompts of a step in rank order: the longest ranks first here."""

from __future__ import annotations

from typing import Any

import pytest

from headway.core.job import Job
from headway.core.plan import StepPlan
from headway.core.view import StepView
from headway.policies.batching.paced import by_rank
from headway.policies.order.keyed import LongestPrompt
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
    return by_rank(seen, StepPlan(run=residents, admit=newcomers, token_budget=budget), order)


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
