"""Steps filled by hand: blocks of 4 tokens, so a job of 8 tokens holds 2 blocks and its 9th takes a third."""

from __future__ import annotations

import pytest

from headway.core.fill import brings_last_token, fill, starts_whole, uncomputed_tokens
from headway.core.job import Job
from headway.core.plan import Departure, Fate, Reason, StepOutcome, StepPlan
from tests.core.block_pool import BlockPool
from tests.strategies import decoding, ids, make_job, prefilling


def hold(pool: BlockPool, *jobs: Job) -> None:
    """Give residents the blocks of what they have computed."""
    for job in jobs:
        pool.tables[job] = []
        if job.num_computed_tokens:
            assert pool._extend(job, job.num_computed_tokens)


def do(
    plan: StepPlan, pool: BlockPool, residents: list[Job], *, max_run: int = 8, max_resident: int = 8
) -> StepOutcome:
    """Fill one step at 3 s and check that every block is still somewhere."""
    outcome = fill(plan, residents, pool, now_s=3.0, max_run=max_run, max_resident=max_resident)
    pool.check()
    assert outcome.num_tokens == sum(outcome.tokens.values())
    assert (outcome.now_s, outcome.plan, outcome.free_blocks) == (3.0, plan, pool.free_blocks)
    return outcome


def granted(outcome: StepOutcome) -> dict[str, int]:
    """Tokens by job id."""
    return {job.id: tokens for job, tokens in outcome.tokens.items()}


def why(outcome: StepOutcome) -> dict[str, Reason]:
    """Reasons by job id."""
    return {job.id: reason for job, reason in outcome.passed_over.items()}


# ---- the budget ------------------------------------------------------------------------------------


def test_the_budget_is_spent_in_run_order_then_on_admissions() -> None:
    # Budget 10: a decodes (1), b needs 6 more of its prompt, w gets the 3 that are left of its 5.
    a, b, w, late = decoding("a"), prefilling("b", computed=4), make_job("w", prompt=5), make_job("late")
    pool = BlockPool(20)
    hold(pool, a, b)
    outcome = do(StepPlan(run=[a, b], admit=[w, late], token_budget=10), pool, [a, b])
    assert granted(outcome) == {"a": 1, "b": 6, "w": 3}
    assert ids(outcome.admitted) == ["w"]
    assert why(outcome) == {"late": Reason.BUDGET}


def test_a_resident_with_nothing_to_compute_is_passed_over() -> None:
    # Everything known of a is computed and its next token in flight; b still gets its own.
    a, b = prefilling("a", computed=10), decoding("b")
    pool = BlockPool(20)
    hold(pool, a, b)
    outcome = do(StepPlan(run=[a, b], token_budget=5), pool, [a, b])
    assert granted(outcome) == {"b": 1}
    assert why(outcome) == {"a": Reason.IN_FLIGHT}


# ---- pauses, preemptions, shortage -----------------------------------------------------------------


def test_a_planned_preemption_frees_its_blocks_first_and_admission_goes_on() -> None:
    # All four blocks are held. Without b's two, neither a's ninth token nor w would find room.
    a, b, w = decoding("a", prompt=8), decoding("b", prompt=8), make_job("w", prompt=4)
    pool = BlockPool(4)
    hold(pool, a, b)
    plan = StepPlan(run=[a], admit=[w], token_budget=9, preempt={b: Fate.SWAP})
    outcome = do(plan, pool, [a, b])
    assert granted(outcome) == {"a": 1, "w": 4}
    assert outcome.preempted == {b: Fate.SWAP}
    assert pool.room(b) == 0


def test_shortage_takes_the_last_paused_then_the_end_of_run() -> None:
    # Every job holds two full blocks of 10 and a ninth token takes a third. Line: a b c | p q (paused).
    # a evicts q (2 free), takes 1; b takes the other; c evicts p, the next of the line, and goes on.
    a, b, c, p, q = (decoding(name, prompt=8) for name in "abcpq")
    pool = BlockPool(10)
    hold(pool, a, b, c, p, q)
    plan = StepPlan(run=[a, b, c], token_budget=9)
    outcome = do(plan, pool, [p, a, b, c, q])
    assert granted(outcome) == {"a": 1, "b": 1, "c": 1}
    assert list(outcome.preempted) == [q, p]
    assert set(outcome.preempted.values()) == {Fate.RECOMPUTE}


def test_the_last_of_run_evicts_itself_and_those_before_it_keep_their_tokens() -> None:
    a, b = decoding("a", prompt=8), decoding("b", prompt=8)
    pool = BlockPool(5)
    hold(pool, a, b)
    outcome = do(StepPlan(run=[a, b], token_budget=9), pool, [a, b])
    assert granted(outcome) == {"a": 1}
    assert list(outcome.preempted) == [b]
    assert (pool.room(a), pool.free_blocks) == (12, 2)


# ---- admission -------------------------------------------------------------------------------------


def test_jobs_that_are_not_ready_are_passed_over() -> None:
    grammar, remote, ready = make_job("grammar"), make_job("remote"), make_job("ready")
    pool = BlockPool(20)
    pool.not_ready = {grammar: Reason.GRAMMAR, remote: Reason.REMOTE_KV}
    outcome = do(StepPlan(admit=[grammar, remote, ready], token_budget=50), pool, [])
    assert ids(outcome.admitted) == ["ready"]
    assert why(outcome) == {"grammar": Reason.GRAMMAR, "remote": Reason.REMOTE_KV}


def test_the_first_ready_job_that_does_not_fit_ends_admission() -> None:
    # Three blocks hold the small ones but not the 13 tokens of `big`, although a first chunk would fit.
    small, big, tiny = make_job("small", prompt=4), make_job("big", prompt=13), make_job("tiny", prompt=1)
    outcome = do(StepPlan(admit=[small, big, tiny], token_budget=8), BlockPool(3), [])
    assert granted(outcome) == {"small": 4}
    assert why(outcome) == {"big": Reason.ISL}


def test_the_watermark_holds_back_a_newcomer_but_not_a_lonely_job() -> None:
    first, second = make_job("first", prompt=8), make_job("second", prompt=4)
    outcome = do(StepPlan(admit=[first, second], token_budget=50), BlockPool(3, watermark_blocks=1), [])
    assert ids(outcome.admitted) == ["first"]
    assert why(outcome) == {"second": Reason.WATERMARK}


@pytest.mark.parametrize(
    ("max_run", "max_resident", "admitted"),
    [
        (8, 8, ["w0", "w1", "w2"]),
        (3, 8, ["w0", "w1"]),  # one runs: two more make a batch of 3, the paused one does not count
        (8, 3, ["w0"]),  # two residents, paused or not: one worker slot is left
        (1, 8, []),
    ],
)
def test_seats_end_admission(max_run: int, max_resident: int, admitted: list[str]) -> None:
    runs, paused = decoding("runs"), decoding("paused")
    wait = [make_job(f"w{place}", prompt=2) for place in range(3)]
    pool = BlockPool(20)
    hold(pool, runs, paused)
    plan = StepPlan(run=[runs], admit=wait, token_budget=50)
    outcome = do(plan, pool, [runs, paused], max_run=max_run, max_resident=max_resident)
    assert ids(outcome.admitted) == admitted
    first_left = wait[len(admitted)] if len(admitted) < 3 else None
    assert outcome.passed_over == ({first_left: Reason.SEATS} if first_left else {})


def test_a_preempted_job_leaves_its_slot_to_a_newcomer() -> None:
    out, wait = decoding("out"), make_job("in", prompt=2)
    pool = BlockPool(20)
    hold(pool, out)
    plan = StepPlan(admit=[wait], token_budget=9, preempt={out: Fate.RECOMPUTE})
    assert ids(do(plan, pool, [out], max_resident=1).admitted) == ["in"]


def test_cached_tokens_are_not_computed_again() -> None:
    # 8 of 10 tokens are cached: 2 to compute, and blocks for all 10.
    job = make_job("a", prompt=10)
    pool = BlockPool(20)
    pool.cached = {job: 8}
    outcome = do(StepPlan(admit=[job], token_budget=50), pool, [])
    assert granted(outcome) == {"a": 2}
    assert outcome.cached_tokens == {job: 8}
    assert pool.room(job) == 12


def test_departures_are_noted() -> None:
    job = make_job()
    assert do(StepPlan(leave={job: Departure.SHED}), BlockPool(1), []).left == {job: Departure.SHED}


# ---- whole prompts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_tokens", "room", "full_budget", "starts"),
    [
        (8, 8, 9, True),
        (9, 8, 8, True),  # longer than any step, and first in this one
        (9, 8, 10, False),  # something else is in the step already
        (1, 0, 8, False),
    ],
)
def test_starts_whole(num_tokens: int, room: int, full_budget: int, starts: bool) -> None:
    assert starts_whole(num_tokens, room, full_budget) is starts


def test_whole_prompts_start_while_they_fit_what_is_left() -> None:
    # Budget 12: a decodes, 11 are left; w takes 6, x of 6 does not fit the 5 left, and y of 2 comes after it.
    a, w, x, y = decoding("a"), *(make_job(name, prompt=n) for name, n in (("w", 6), ("x", 6), ("y", 2)))
    pool = BlockPool(20)
    hold(pool, a)
    outcome = do(StepPlan(run=[a], admit=[w, x, y], token_budget=12, whole_prompts=True), pool, [a])
    assert granted(outcome) == {"a": 1, "w": 6}
    assert why(outcome) == {"x": Reason.WHOLE_PROMPT}


def test_a_prompt_longer_than_the_budget_runs_alone_in_chunks() -> None:
    long, short = make_job("long", prompt=20), make_job("short", prompt=1)
    outcome = do(StepPlan(admit=[long, short], token_budget=8, whole_prompts=True), BlockPool(20), [])
    assert granted(outcome) == {"long": 8}
    assert why(outcome) == {"short": Reason.BUDGET}


def test_a_prompt_longer_than_the_budget_waits_while_others_run() -> None:
    a, long = decoding("a"), make_job("long", prompt=20)
    pool = BlockPool(20)
    hold(pool, a)
    outcome = do(StepPlan(run=[a], admit=[long], token_budget=8, whole_prompts=True), pool, [a])
    assert granted(outcome) == {"a": 1}
    assert why(outcome) == {"long": Reason.WHOLE_PROMPT}


def test_whole_prompts_are_fitted_by_all_their_tokens_cached_or_not() -> None:
    # Budget 12: w's 8 cached tokens cost nothing (budget left 10) but take room (12 - 10 = 2), so x must wait.
    w, x = make_job("w", prompt=10), make_job("x", prompt=3)
    pool = BlockPool(20)
    pool.cached = {w: 8}
    outcome = do(StepPlan(admit=[w, x], token_budget=12, whole_prompts=True), pool, [])
    assert granted(outcome) == {"w": 2}
    assert why(outcome) == {"x": Reason.WHOLE_PROMPT}


def test_the_last_token_is_on_its_way_for_certain_when_it_is_whatever_becomes_of_drafts() -> None:
    # A prompt of 8 and at most 3 tokens: 10 computed bring the eleventh, unless one is a refused draft.
    assert brings_last_token(1, 10, 8 + 3)
    assert not brings_last_token(1, 9, 8 + 3)
    assert not brings_last_token(2, 10, 8 + 3)
    assert brings_last_token(2, 11, 8 + 3)


def test_a_job_whose_last_token_is_under_way_has_nothing_to_compute_unless_it_went_past_its_declared_limit() -> (
    None
):
    job = make_job("a", prompt=8, limit=3)
    job.num_output_tokens, job.num_output_placeholders, job.num_computed_tokens = 2, 1, 10
    assert uncomputed_tokens(job) == 0
    job.num_output_tokens, job.num_computed_tokens = 3, 11
    assert uncomputed_tokens(job) == 1
