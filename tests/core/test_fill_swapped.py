"""Steps with jobs whose KV is on the host or on its way, filled by hand: blocks of 4 tokens."""

from __future__ import annotations

import pytest

from headway.core.job import Job, JobState
from headway.core.plan import Fate, Reason, StepPlan
from tests.core.block_pool import BlockPool
from tests.core.test_fill import do, granted, hold, why
from tests.strategies import decoding, ids, make_job


def swapped(name: str, *, prompt: int = 8) -> Job:
    """A job that has computed its prompt, got a token, and left."""
    return make_job(
        name, prompt=prompt, num_computed_tokens=prompt, num_output_tokens=1, state=JobState.SWAPPED
    )


class Slow(BlockPool):
    """A pool whose copies back take time."""

    def start(self, job: Job, num_tokens: int) -> Reason | None:
        misfit = super().start(job, num_tokens)
        if misfit is None and job.state is JobState.SWAPPED:
            self.restoring.add(job)
            self.returned.add(job)
        return misfit


def test_a_swapped_job_takes_all_its_blocks_and_a_seat_but_no_tokens_until_its_kv_is_there() -> None:
    # s has 9 tokens: three blocks. The budget of 5 is w's.
    pool, s, w = Slow(8), swapped("s"), make_job("w", prompt=5)
    outcome = do(StepPlan(admit=[s, w], token_budget=5), pool, [])
    assert ids(outcome.admitted) == ["s", "w"]
    assert granted(outcome) == {"w": 5}
    assert pool.room(s) == 12
    third = do(StepPlan(admit=[make_job("x")], token_budget=5), pool, [s, w], max_run=2, max_resident=2)
    assert third.admitted == []


def test_a_swapped_job_whose_kv_is_there_at_once_runs_in_the_same_step() -> None:
    s = swapped("s")
    outcome = do(StepPlan(admit=[s], token_budget=5), BlockPool(8), [])
    assert granted(outcome) == {"s": 1}


def test_what_a_swapped_job_finds_beyond_its_own_is_not_computed_either() -> None:
    s = make_job("s", prompt=20, num_computed_tokens=6, state=JobState.SWAPPED)
    pool = BlockPool(8)
    pool.cached = {s: 12}
    outcome = do(StepPlan(admit=[s], token_budget=30), pool, [])
    assert granted(outcome) == {"s": 8}


def test_a_swapped_job_is_no_prompt_that_has_to_fit_whole() -> None:
    s, w = swapped("s", prompt=40), make_job("w", prompt=8)
    plan = StepPlan(admit=[s, w], token_budget=9, whole_prompts=True)
    assert granted(do(plan, BlockPool(20), [])) == {"s": 1, "w": 8}


def test_a_job_on_its_way_back_is_passed_over() -> None:
    a, b = decoding("a"), decoding("b")
    pool = BlockPool(8)
    hold(pool, a, b)
    pool.restoring = pool.returned = {a}
    outcome = do(StepPlan(run=[a, b], token_budget=9), pool, [a, b])
    assert (granted(outcome), why(outcome)) == ({"b": 1}, {"a": Reason.REMOTE_KV})


def test_a_job_that_is_back_runs_after_the_others_and_before_those_who_start() -> None:
    # A budget of 2 for three: b, then a, which is back; nothing is left for w.
    a, b, w = decoding("a"), decoding("b"), make_job("w", prompt=1)
    pool = BlockPool(8)
    hold(pool, a, b)
    pool.returned = {a}
    outcome = do(StepPlan(run=[a, b], admit=[w], token_budget=2), pool, [a, b])
    assert list(granted(outcome).items()) == [("b", 1), ("a", 1)]
    assert why(outcome) == {"w": Reason.BUDGET}


def test_nobody_is_evicted_for_the_first_step_of_a_job_that_is_back() -> None:
    # All four blocks are held; a's ninth token needs one more, b's eighth does not. Nobody starts behind a.
    a, b, w = decoding("a", prompt=8), decoding("b", prompt=7), make_job("w", prompt=1)
    pool = BlockPool(4)
    hold(pool, a, b)
    pool.returned = {a}
    outcome = do(StepPlan(run=[a, b], admit=[w], token_budget=9), pool, [a, b])
    assert (granted(outcome), outcome.preempted, outcome.admitted) == ({"b": 1}, {}, [])
    assert why(outcome) == {"a": Reason.BLOCKS}


def test_no_job_that_is_back_runs_in_a_step_that_was_short_of_blocks() -> None:
    # b's ninth token takes the block that c, the last, gives up; a waits for the next step.
    a, b, c = decoding("a", prompt=7), decoding("b", prompt=8), decoding("c", prompt=1)
    pool = BlockPool(5)
    hold(pool, a, b, c)
    pool.returned = {a}
    outcome = do(StepPlan(run=[a, b], token_budget=9), pool, [a, b, c])
    assert (granted(outcome), outcome.preempted) == ({"b": 1}, {c: Fate.RECOMPUTE})


def test_a_full_host_makes_a_swap_a_recomputation() -> None:
    a = decoding("a")
    pool = BlockPool(8)
    hold(pool, a)
    pool.host_full = True
    outcome = do(StepPlan(preempt={a: Fate.SWAP}, token_budget=9), pool, [a])
    assert outcome.preempted == {a: Fate.RECOMPUTE}


def test_blocks_that_are_coming_free_are_waited_for() -> None:
    # All four blocks are held: a's ninth token needs one. Two are coming free, so nobody is preempted; b, behind
    # a, waits too, and nobody starts.
    a, b, w = decoding("a", prompt=8), decoding("b", prompt=7), make_job("w", prompt=1)
    pool = BlockPool(4)
    hold(pool, a, b)
    pool.leaving = 2
    outcome = do(StepPlan(run=[a, b], admit=[w], prefetch=[swapped("s")], token_budget=9), pool, [a, b])
    assert (granted(outcome), outcome.preempted, outcome.admitted) == ({}, {}, [])
    assert why(outcome) == {"a": Reason.BLOCKS}


def test_a_prefetch_takes_slots_and_blocks_that_are_left_and_no_place_in_the_batch() -> None:
    # One place in the batch, taken by a; three slots. Of eight blocks a has three: s and t take three and two.
    a, s, t, u = decoding("a"), swapped("s"), swapped("t", prompt=7), swapped("u")
    pool = Slow(8)
    hold(pool, a)
    plan = StepPlan(run=[a], prefetch=[s, t, u], token_budget=9)
    outcome = do(plan, pool, [a], max_run=1, max_resident=3)
    assert ids(outcome.admitted) == ["s", "t"]
    assert (granted(outcome), why(outcome)) == ({"a": 1}, {"u": Reason.SEATS})


def test_a_prefetch_passes_over_who_is_not_ready_and_ends_at_the_first_that_does_not_fit() -> None:
    s, t, u = swapped("s"), swapped("t"), swapped("u", prompt=1)
    pool = Slow(2)
    pool.not_ready = {s: Reason.REMOTE_KV}
    outcome = do(StepPlan(prefetch=[s, t, u], token_budget=9), pool, [])
    assert (outcome.admitted, why(outcome)) == ([], {"s": Reason.REMOTE_KV, "t": Reason.ISL})


@pytest.mark.parametrize("full", [False, True])
def test_an_offload_is_started_or_refused(full: bool) -> None:
    a = decoding("a")
    pool = BlockPool(8)
    hold(pool, a)
    pool.host_full = full
    outcome = do(StepPlan(offload=[a], token_budget=9), pool, [a])
    assert outcome.offloaded == ([] if full else [a])
    assert why(outcome) == ({"a": Reason.HOST_BLOCKS} if full else {})


def test_a_job_preempted_by_shortage_is_not_offloaded() -> None:
    a, b = decoding("a", prompt=8), decoding("b", prompt=8)
    pool = BlockPool(4)
    hold(pool, a, b)
    outcome = do(StepPlan(run=[a], offload=[b], token_budget=9), pool, [a, b])
    assert outcome.preempted == {b: Fate.RECOMPUTE}
    assert outcome.offloaded == []
