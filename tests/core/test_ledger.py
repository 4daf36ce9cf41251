from __future__ import annotations

import pytest

from headway.core.job import Job, JobState
from headway.core.ledger import Ledger
from headway.core.length_estimate import LengthEstimate
from headway.core.plan import Fate, StepOutcome, StepPlan
from headway.core.record import Outcome
from headway.core.slo import Slo
from tests.strategies import ids, make_job


def started(*names: str) -> tuple[Ledger, list[Job]]:
    """A ledger with these jobs resident, each with its prompt of 10 computed at 1 s."""
    ledger, jobs = Ledger(), [make_job(name) for name in names]
    for job in jobs:
        ledger.arrive(job)
    step(ledger, admitted=jobs, tokens=dict.fromkeys(jobs, 10), now_s=1.0)
    return ledger, jobs


def step(ledger: Ledger, *, run: list[Job] | None = None, now_s: float = 2.0, **outcome: object) -> None:
    """Apply one step; by default every resident runs."""
    plan = StepPlan(run=list(ledger.residents) if run is None else run)
    ledger.apply(StepOutcome(now_s=now_s, plan=plan, **outcome))  # type: ignore[arg-type]
    ledger.check()


def test_a_new_job_waits() -> None:
    ledger, job = Ledger(), make_job()
    ledger.arrive(job)
    assert (ledger.waiting, ledger.residents, ledger.live, ledger.arrived) == ({"a": job}, [], 1, 1)
    ledger.check()


def test_admission_makes_a_job_resident_with_its_first_tokens() -> None:
    ledger, job = Ledger(), make_job()
    ledger.arrive(job)
    step(ledger, admitted=[job], cached_tokens={job: 4}, tokens={job: 3}, now_s=5.0)
    assert (ledger.waiting, ledger.residents) == ({}, [job])
    assert (job.state, job.num_computed_tokens, job.first_scheduled_s) == (JobState.RESIDENT, 7, 5.0)


@pytest.mark.parametrize(
    ("run", "expected"), [("abc", "abc"), ("cab", "cab"), ("c", "cab"), ("ca", "cab"), ("", "abc")]
)
def test_residents_stand_as_the_step_served_them_then_the_paused(run: str, expected: str) -> None:
    ledger, jobs = started("a", "b", "c")
    by_id = {job.id: job for job in jobs}
    step(ledger, run=[by_id[name] for name in run])
    assert ids(ledger.residents) == list(expected)


def test_following_a_step_does_not_change_its_plan() -> None:
    ledger, (a, _) = started("a", "b")
    late = make_job("c")
    ledger.arrive(late)
    plan = StepPlan(run=ledger.residents, admit=[late])
    ledger.apply(StepOutcome(now_s=2.0, plan=plan, admitted=[late]))
    assert ids(plan.run) == ["a", "b"]
    ledger.end(a, Outcome.FINISHED, 3.0)
    assert ids(plan.run) == ["a", "b"]


def test_a_dropped_job_waits_again_with_nothing_computed() -> None:
    ledger, (a, b) = started("a", "b")
    step(ledger, run=[a], preempted={b: Fate.RECOMPUTE})
    assert (ids(ledger.residents), list(ledger.waiting)) == (["a"], ["b"])
    assert (b.state, b.num_computed_tokens, b.num_preemptions) == (JobState.WAITING, 0, 1)
    assert b.recomputed_tokens == 10


def test_a_swapped_job_keeps_what_it_has_computed() -> None:
    ledger, (a,) = started("a")
    step(ledger, run=[], preempted={a: Fate.SWAP})
    assert (ledger.swapped, ledger.waiting, ledger.residents, ledger.live) == ({"a": a}, {}, [], 1)
    assert (a.state, a.num_preemptions, a.recomputed_tokens) == (JobState.SWAPPED, 1, 0)
    assert a.num_computed_tokens == 10


@pytest.mark.parametrize("fate", Fate)
def test_nothing_is_built_on_the_tokens_in_flight_of_a_preempted_job(fate: Fate) -> None:
    ledger, (a,) = started("a")
    a.num_output_placeholders = 1
    step(ledger, run=[], preempted={a: fate})
    assert a.num_output_placeholders == 0


@pytest.mark.parametrize(("found", "computed"), [(0, 10), (8, 10), (12, 12)])
def test_a_swapped_job_comes_back_with_the_most_that_is_there(found: int, computed: int) -> None:
    ledger, (a,) = started("a")
    a.recomputed_tokens = 5
    step(ledger, run=[], preempted={a: Fate.SWAP})
    step(ledger, admitted=[a], cached_tokens={a: found})
    assert (ledger.swapped, ledger.residents, a.state) == ({}, [a], JobState.RESIDENT)
    assert (a.num_computed_tokens, a.recomputed_tokens) == (computed, 5)


def test_recomputed_tokens_are_those_computed_more_than_once() -> None:
    # 10 computed and dropped; 4 of them found in the cache: 6 to compute again. After 5 of these (9 computed)
    # dropped again: 6 + 9 = 15; then all of the 9 are still cached, so 6 stay lost.
    ledger, (a,) = started("a")
    step(ledger, run=[], preempted={a: Fate.RECOMPUTE})
    step(ledger, admitted=[a], cached_tokens={a: 4}, tokens={a: 5})
    assert (a.num_computed_tokens, a.recomputed_tokens) == (9, 6)
    step(ledger, run=[], preempted={a: Fate.RECOMPUTE})
    assert a.recomputed_tokens == 15
    step(ledger, admitted=[a], cached_tokens={a: 9}, tokens={a: 1})
    assert (a.num_computed_tokens, a.recomputed_tokens) == (10, 6)


def test_a_cached_prefix_at_the_first_start_is_no_recomputation() -> None:
    ledger, job = Ledger(), make_job()
    ledger.arrive(job)
    step(ledger, admitted=[job], cached_tokens={job: 8}, tokens={job: 2})
    assert job.recomputed_tokens == 0


def test_the_first_start_is_kept_through_a_preemption() -> None:
    ledger, (a,) = started("a")
    step(ledger, run=[], preempted={a: Fate.RECOMPUTE})
    step(ledger, admitted=[a], now_s=9.0)
    assert a.first_scheduled_s == 1.0


def test_only_the_first_sample_brings_the_first_token() -> None:
    ledger, (a,) = started("a")
    assert ledger.sampled(a, 2, 3.0) is True
    assert ledger.sampled(a, 1, 4.0) is False
    assert (a.num_output_tokens, a.first_token_s) == (3, 3.0)


@pytest.mark.parametrize("outcome", Outcome)
def test_an_ended_job_is_gone_and_counted(outcome: Outcome) -> None:
    ledger, (a,) = started("a")
    waits = make_job("w")
    ledger.arrive(waits)
    for job in (a, waits):
        assert ledger.end(job, outcome, 9.0).outcome is outcome
        assert job.state is JobState.ENDED
        ledger.check()
    assert (ledger.live, ledger.arrived, ledger.ended) == (0, 2, {outcome: 2})


def test_a_job_ends_once() -> None:
    ledger, (a,) = started("a")
    ledger.end(a, Outcome.FINISHED, 2.0)
    with pytest.raises(ValueError, match="not in list"):
        ledger.end(a, Outcome.CANCELLED, 3.0)
    assert ledger.ended == {Outcome.FINISHED: 1}


def test_the_record_says_what_happened() -> None:
    slo = Slo(ttft_s=2)
    job = make_job(
        "x", prompt=6, arrival_s=0.5, slo=slo, tenant="t", predicted_length=LengthEstimate.around(7.5)
    )
    ledger = Ledger()
    ledger.arrive(job)
    step(ledger, admitted=[job], tokens={job: 6}, now_s=1.0)
    step(ledger, run=[], preempted={job: Fate.RECOMPUTE})
    step(ledger, admitted=[job], tokens={job: 6})
    ledger.sampled(job, 1, 3.0)
    ledger.sampled(job, 1, 4.0)
    record = ledger.end(job, Outcome.FINISHED, 4.5)
    assert (record.id, record.tenant, record.slo, record.predicted_output_tokens) == ("x", "t", slo, 7.5)
    assert (record.arrival_s, record.first_scheduled_s, record.first_token_s) == (0.5, 1.0, 3.0)
    assert (record.finished_s, record.outcome) == (4.5, Outcome.FINISHED)
    assert (record.prompt_tokens, record.output_tokens) == (6, 2)
    assert (record.preemptions, record.recomputed_tokens) == (1, 6)


@pytest.mark.parametrize("damage", ["lost", "doubled", "wrong state", "not counted"])
def test_check_notices(damage: str) -> None:
    ledger, (a, _) = started("a", "b")
    if damage == "lost":
        ledger.residents.remove(a)
    elif damage == "doubled":
        ledger.residents.append(a)
        ledger.arrived += 1
    elif damage == "wrong state":
        a.state = JobState.WAITING
    else:
        ledger.ended[Outcome.SHED] += 1
    with pytest.raises(AssertionError):
        ledger.check()
