"""The buckets of the index; its ranking is tested by the orders that use it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import Job
from headway.core.plan import StepOutcome, StepPlan
from headway.core.slo import Slo
from headway.policies.order.response_ratio import (
    SIZES_A_SECOND,
    DeadlineAware,
    Hrrn,
    WaitedOverLength,
    bucket_of,
)
from tests.policies.contract import jobs_held_by
from tests.policies.order.per_token import PerToken, exactly
from tests.strategies import UNTIMED, ids, instants, make_job, waiting_jobs


@UNTIMED
@given(size=st.integers(1, 10**6))
def test_sizes_in_one_queue_differ_by_less_than_one_part_in_64(size: int) -> None:
    assert 0 <= size - bucket_of(size) < bucket_of(size) / 64
    assert bucket_of(bucket_of(size)) == bucket_of(size)


NOW_S = 50.0


def indexed(jobs: list[Job]) -> WaitedOverLength:
    """The order with these jobs waiting."""
    order = WaitedOverLength()
    for job in jobs:
        order.add(job)
    return order


def exact(job: Job) -> tuple[float, float, str]:
    """Smallest first: minus waiting time over length, then arrival, then id."""
    return ((job.arrival_s - NOW_S) / job.num_tokens, job.arrival_s, job.id)


@st.composite
def queues(draw: st.DrawFn, lengths: st.SearchStrategy[int]) -> list[Job]:
    """Jobs of the given lengths that arrived in the last 50 s, in no order of id."""
    names = draw(st.lists(st.integers(0, 99), max_size=14, unique=True))
    return [
        make_job(f"{name:02}", prompt=draw(lengths), arrival_s=float(draw(st.integers(0, 50))))
        for name in names
    ]


def test_the_value_is_time_waited_over_tokens_so_far() -> None:
    # At 50 s: a waited 40 s for 100 tokens: 0.4; b 10 s for 20: 0.5; c 45 s for 150: 0.3; d 0 s: 0.
    jobs = [
        make_job("a", prompt=100, arrival_s=10.0),
        make_job("b", prompt=20, arrival_s=40.0),
        make_job("c", prompt=150, arrival_s=5.0),
        make_job("d", prompt=1, arrival_s=50.0),
    ]
    order = indexed(jobs)
    assert ids(order.top(9, NOW_S)) == ids(order.rank(jobs, NOW_S)) == ["b", "a", "c", "d"]
    assert ids(order.top(2, NOW_S)) == ["b", "a"]
    assert order.top(0, NOW_S) == []


def test_rankings_cross_as_time_passes() -> None:
    # old (100 tokens since 0 s) against young (10 tokens since 9 s). At 9.5 s: 0.095 against 0.05;
    # at 12 s: 0.12 against 0.3.
    order = indexed([make_job("old", prompt=100), make_job("young", prompt=10, arrival_s=9.0)])
    assert ids(order.top(2, 9.5)) == ["old", "young"]
    assert ids(order.top(2, 12.0)) == ["young", "old"]


def test_touch_moves_a_waiting_job_that_grew_and_leaves_others_alone() -> None:
    # `grows` waits with 10 tokens and then 200: its value falls from 5 to 0.25, below 0.5.
    grows, other, gone = make_job("grows"), make_job("other", prompt=100), make_job("gone")
    order = indexed([grows, other])
    assert ids(order.top(2, NOW_S)) == ["grows", "other"]
    grows.num_output_tokens = 190
    order.touch(grows)
    order.touch(gone)
    assert ids(order.top(9, NOW_S)) == ["other", "grows"]


@UNTIMED
@given(jobs=queues(st.integers(1, 127)), k=st.integers(0, 15))
def test_short_jobs_are_ranked_exactly(jobs: list[Job], k: int) -> None:
    assert ids(indexed(jobs).top(k, NOW_S)) == ids(sorted(jobs, key=exact)[:k])


@UNTIMED
@given(jobs=queues(st.integers(128, 160) | st.integers(1, 5000)))
def test_a_job_served_too_early_is_behind_by_at_most_one_part_in_64(jobs: list[Job]) -> None:
    # Integers alone, so exact: waited_later / tokens_later <= 65/64 * waited_first / tokens_first.
    ranked = indexed(jobs).top(len(jobs), NOW_S)
    assert set(ranked) == set(jobs)
    for place, first in enumerate(ranked):
        for later in ranked[place + 1 :]:
            waited_first, waited_later = int(NOW_S - first.arrival_s), int(NOW_S - later.arrival_s)
            assert 64 * waited_later * first.num_tokens <= 65 * waited_first * later.num_tokens


@UNTIMED
@given(jobs=queues(st.integers(1, 5000)))
def test_residents_are_ranked_exactly(jobs: list[Job]) -> None:
    assert ids(WaitedOverLength().rank(jobs, NOW_S)) == ids(sorted(jobs, key=exact))


def test_by_the_prompt_alone_a_job_keeps_its_rank_as_it_grows() -> None:
    # At 50 s: a waited 40 s for a prompt of 10: 4; b 30 s for 10: 3. a has 30 output tokens, 40 in all: then 1.
    a = make_job("a", prompt=10, arrival_s=10.0, num_output_tokens=30)
    b = make_job("b", prompt=10, arrival_s=20.0)
    for order, expected in (
        (WaitedOverLength(), ["b", "a"]),
        (WaitedOverLength(prompt_only=True), ["a", "b"]),
    ):
        order.add(a)
        order.add(b)
        assert ids(order.top(2, NOW_S)) == ids(order.rank([a, b], NOW_S)) == expected
    assert WaitedOverLength(prompt_only=True).value(a, NOW_S) == 4.0
    assert WaitedOverLength().value(a, NOW_S) == 1.0


def by_urgency(*jobs: Job, most: float = 8.0) -> DeadlineAware:
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
    order = by_urgency(old, soon)
    found = [ids(order.top(2, now_s)) for now_s in (60.0, 70.0, 81.0)]
    assert found == [["old", "soon"], ["soon", "old"], ["old", "soon"]]
    assert found == [ids(order.rank([soon, old], now_s)) for now_s in (60.0, 70.0, 81.0)]


def test_the_next_due_compete_although_many_have_waited_longer() -> None:
    jobs = [make_job(f"{n:02}", prompt=10) for n in range(50)]
    soon = targeted("soon", 16.0, arrival_s=85.0)  # 15/10 x 8 = 12 at 100 s, against 10
    assert ids(by_urgency(*jobs, soon).top(2, 100.0)) == ["soon", "00"]


def test_a_first_token_takes_its_target_away() -> None:
    job = make_job("a", slo=Slo(ttft_s=10.0))
    order = by_urgency(job)
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
    order = by_urgency(*jobs)
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
    ranked = by_urgency(*waiting, most=most).rank(waiting, now_s)
    for place, job in enumerate(ranked):
        share_s = (now_s - job.arrival_s) / (job.num_tokens * most)
        assert all(now_s - other.arrival_s >= share_s * (1 - 1e-9) for other in ranked[:place])


@UNTIMED
@given(jobs=waiting_jobs(), now_s=instants)
def test_the_whole_queue_is_ranked_by_value(jobs: list[Job], now_s: float) -> None:
    order = by_urgency(*jobs)
    found = order.top(99, now_s)
    assert sorted(ids(found)) == sorted(ids(jobs))
    if any(job.due_s is not None and job.due_s >= now_s for job in jobs):
        assert ids(found) == ids(order.rank(jobs, now_s))


def expecting(id_: str, tokens: float, arrival_s: float) -> Job:
    return make_job(id_, prompt=1, limit=10**6, arrival_s=arrival_s, predicted_length=exactly(tokens))


def by_ratio(jobs: list[Job]) -> Hrrn:
    order = Hrrn(PerToken())
    for job in jobs:
        order.add(job)
    return order


def test_the_response_ratio_by_hand() -> None:
    # At 50 s, waited over work: a 40 / (80/8) = 4, ratio 5; b 10 / (16/8) = 5, ratio 6; c 45 / (120/8) = 3; d 0.
    jobs = [
        expecting("a", 80, 10.0),
        expecting("b", 16, 40.0),
        expecting("c", 120, 5.0),
        expecting("d", 8, 50.0),
    ]
    order = by_ratio(jobs)
    assert ids(order.top(9, NOW_S)) == ids(order.rank(jobs, NOW_S)) == ["b", "a", "c", "d"]
    assert ids(order.top(1, NOW_S)) == ["b"]
    assert [order.value(job, NOW_S) for job in jobs] == [4.0, 5.0, 3.0, 0.0]


def test_who_runs_has_less_and_less_work() -> None:
    # Both came at 0 s; after 40 of its 80 tokens `runs` has 5 s left against 6.
    runs, waits = expecting("runs", 80, 0.0), expecting("waits", 48, 0.0)
    order = by_ratio([runs, waits])
    order.remove(runs)
    runs.num_output_tokens = runs.num_computed_tokens = 40
    assert ids(order.rank([runs, waits], NOW_S)) == ["waits", "runs"]
    order.observe(StepOutcome(now_s=NOW_S, plan=StepPlan(), tokens={runs: 1}))
    assert ids(order.rank([runs, waits], NOW_S)) == ["runs", "waits"]


@UNTIMED
@given(
    queued=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5000)), max_size=14), k=st.integers(0, 15)
)
def test_a_job_of_less_ratio_served_too_early_is_behind_by_at_most_one_part_in_64(
    queued: list[tuple[int, int]], k: int
) -> None:
    jobs = [expecting(f"{n:02}", tokens, float(at_s)) for n, (at_s, tokens) in enumerate(queued)]
    order = by_ratio(jobs)
    ranked = order.top(k, NOW_S)
    assert len(ranked) == min(k, len(jobs))
    rest = [job for job in jobs if job not in ranked]
    rounding = 1 + 1e4 / SIZES_A_SECOND  # work of an eighth of a second or more, in whole microseconds
    for place, first in enumerate(ranked):
        for later in [*ranked[place + 1 :], *rest]:
            assert order.value(later, NOW_S) <= order.value(first, NOW_S) * 65 / 64 * rounding
