from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import Job
from headway.core.slo import Slo
from headway.policies.order.response_ratio import DeadlineAware, WaitedOverLength
from tests.policies.contract import jobs_held_by
from tests.strategies import UNTIMED, decoding, ids, instants, make_job, waiting_jobs


def indexed(*jobs: Job, most: float = 8.0) -> DeadlineAware:
    """The order with these jobs waiting."""
    order = DeadlineAware(most)
    for job in jobs:
        order.add(job)
    return order


def targeted(id_: str, deadline_s: float, *, prompt: int = 10, arrival_s: float = 0.0) -> Job:
    """A job that is due so long after its arrival."""
    return make_job(id_, prompt=prompt, arrival_s=arrival_s, slo=Slo(deadline_s=deadline_s))


@pytest.mark.parametrize(
    ("now_s", "value"),
    [
        (0.0, 0.0),  # arrived
        (20.0, 2.0 * 1.25),  # 20 s for 10 tokens; 100 s allowed, 80 left
        (50.0, 5.0 * 2.0),
        (80.0, 8.0 * 5.0),
        (90.0, 9.0 * 8.0),  # 10 times as urgent, but 8 is the most
        (100.0, 10.0 * 8.0),  # the last moment
        (101.0, 10.1),  # missed: urgent no more
    ],
)
def test_urgency_grows_to_its_limit_and_ends_with_the_deadline(now_s: float, value: float) -> None:
    assert DeadlineAware().value(targeted("a", 100.0), now_s) == pytest.approx(value)


def test_a_deadline_that_comes_near_passes_older_jobs_until_it_is_missed() -> None:
    # old 60/10 = 6 at 60 s; soon, since 40 s and due at 80: 20/10 x 40/20 = 4. At 70 s: 7 against 3 x 4 = 12.
    # At 81 s: 8.1 against 4.1.
    old, soon = make_job("old"), targeted("soon", 40.0, arrival_s=40.0)
    order = indexed(old, soon)
    found = [ids(order.top(2, now_s)) for now_s in (60.0, 70.0, 81.0)]
    assert found == [["old", "soon"], ["soon", "old"], ["old", "soon"]]
    assert found == [ids(order.rank([soon, old], now_s)) for now_s in (60.0, 70.0, 81.0)]


def test_the_next_due_compete_although_many_have_waited_longer() -> None:
    jobs = [make_job(f"{n:02}", prompt=10) for n in range(50)]
    soon = targeted("soon", 16.0, arrival_s=85.0)  # 15/10 x 8 = 12 at 100 s, against 10
    assert ids(indexed(*jobs, soon).top(2, 100.0)) == ["soon", "00"]


def test_a_first_token_takes_its_target_away() -> None:
    job = make_job("a", slo=Slo(ttft_s=10.0))
    order = indexed(job)
    job.num_output_tokens = 1
    order.touch(job)
    assert order.value(job, 9.0) == pytest.approx(9 / 11)
    order.remove(job)
    order.touch(job)
    order.end(job)
    assert not jobs_held_by(order)
    assert order.top(3, 9.0) == []


@UNTIMED
@given(jobs=waiting_jobs(), now_s=instants, k=st.integers(0, 9), prompt_only=st.booleans())
def test_without_targets_it_is_waited_over_length(
    jobs: list[Job], now_s: float, k: int, prompt_only: bool
) -> None:
    plain, order = WaitedOverLength(prompt_only=prompt_only), DeadlineAware(prompt_only=prompt_only)
    for job in jobs:
        job.slo = Slo()
        plain.add(job)
        order.add(job)
    assert order.top(k, now_s) == plain.top(k, now_s)
    assert ids(order.rank(jobs, now_s)) == ids(plain.rank(jobs, now_s))


@UNTIMED
@given(jobs=waiting_jobs(), now_s=instants)
def test_an_expired_deadline_counts_as_none(jobs: list[Job], now_s: float) -> None:
    order = indexed(*jobs)
    for job in jobs:
        if job.due_s is not None and job.due_s < now_s:
            assert order.value(job, now_s) == WaitedOverLength().value(job, now_s)


@UNTIMED
@given(jobs=waiting_jobs(), now_s=instants, most=st.sampled_from([1.0, 2.0, 8.0]))
def test_whoever_passes_a_job_has_waited_a_share_of_its_wait(
    jobs: list[Job], now_s: float, most: float
) -> None:
    # The bound: of a job of length L that has waited W, W / (L x most).
    waiting = [job for job in jobs if job.arrival_s <= now_s]
    ranked = indexed(*waiting, most=most).rank(waiting, now_s)
    for place, job in enumerate(ranked):
        share_s = (now_s - job.arrival_s) / (job.num_tokens * most)
        assert all(now_s - other.arrival_s >= share_s * (1 - 1e-9) for other in ranked[:place])


@UNTIMED
@given(jobs=waiting_jobs(), now_s=instants)
def test_the_whole_queue_is_ranked_by_value(jobs: list[Job], now_s: float) -> None:
    order = indexed(*jobs)
    found = order.top(99, now_s)
    assert sorted(ids(found)) == sorted(ids(jobs))
    if any(job.due_s is not None and job.due_s >= now_s for job in jobs):
        assert ids(found) == ids(order.rank(jobs, now_s))


def test_residents_are_ranked_without_being_indexed() -> None:
    a, b = decoding("a", arrival_s=0.0), decoding("b", arrival_s=5.0)
    assert ids(DeadlineAware().rank([b, a], 10.0)) == ["a", "b"]
