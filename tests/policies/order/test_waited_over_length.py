from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import Job
from headway.policies.order.response_ratio import WaitedOverLength
from tests.policies.contract import jobs_held_by
from tests.strategies import UNTIMED, ids, make_job

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


def test_output_tokens_count_as_length() -> None:
    # Both since 0 s with a prompt of 10; `talks` has 10 tokens more, so half the value.
    talks, silent = make_job("talks", num_output_tokens=10), make_job("silent", arrival_s=0.0)
    order = indexed([talks, silent])
    assert ids(order.top(2, NOW_S)) == ids(order.rank([talks, silent], NOW_S)) == ["silent", "talks"]


def test_equal_values_tie_to_arrival_then_id() -> None:
    # All at 1: 40 s over 40 tokens, 20 over 20; the two of 20 arrived together.
    jobs = [make_job(name, prompt=int(NOW_S - at), arrival_s=at) for name, at in (("z", 30.0), ("y", 30.0))]
    jobs.append(make_job("x", prompt=40, arrival_s=10.0))
    order = indexed(jobs)
    assert ids(order.top(9, NOW_S)) == ids(order.rank(jobs, NOW_S)) == ["x", "y", "z"]


def test_touch_moves_a_waiting_job_that_grew_and_leaves_others_alone() -> None:
    # `grows` waits with 10 tokens and then 200: its value falls from 5 to 0.25, below 0.5.
    grows, other, gone = make_job("grows"), make_job("other", prompt=100), make_job("gone")
    order = indexed([grows, other])
    assert ids(order.top(2, NOW_S)) == ["grows", "other"]
    grows.num_output_tokens = 190
    order.touch(grows)
    order.touch(gone)
    assert ids(order.top(9, NOW_S)) == ["other", "grows"]


def test_empty_queues_are_dropped() -> None:
    jobs = [make_job(str(length), prompt=length) for length in (5, 50, 500)]
    order = indexed(jobs)
    for job in jobs:
        order.remove(job)
        order.end(job)
    assert order.top(9, NOW_S) == []
    assert not order._waiting._queues
    assert not jobs_held_by(order)


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
