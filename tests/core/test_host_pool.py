from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.host_pool import HostPool
from tests.strategies import UNTIMED, make_job


def test_blocks_are_reserved_then_complete_then_free() -> None:
    host, job = HostPool(8), make_job()
    assert host.reserve(job, 3)
    assert (host.free_blocks, host.held(job), host.complete(job), host.in_flight(job)) == (5, 3, 0, 3)
    host.commit(job, 3)
    assert (host.complete(job), host.in_flight(job)) == (3, 0)
    host.drop(job)
    assert (host.free_blocks, host.held(job), host.complete(job)) == (8, 0, 0)
    host.check()


def test_a_reservation_grows_by_what_is_missing_and_never_shrinks() -> None:
    host, job = HostPool(4), make_job()
    assert host.reserve(job, 3)
    assert host.reserve(job, 4)
    assert host.reserve(job, 2)
    assert (host.held(job), host.free_blocks) == (4, 0)


def test_a_full_host_refuses_and_changes_nothing() -> None:
    host, job, other = HostPool(4), make_job("a"), make_job("b")
    assert host.reserve(job, 3)
    assert not host.reserve(other, 2)
    assert not host.reserve(job, 5)
    assert (host.held(job), host.held(other), host.free_blocks) == (3, 0, 1)


def test_a_job_that_ran_spoils_the_blocks_it_wrote_to() -> None:
    host, job = HostPool(4), make_job()
    host.reserve(job, 3)
    host.commit(job, 3)
    host.spoil(job, 2)
    assert (host.complete(job), host.in_flight(job)) == (2, 1)
    host.spoil(job, 3)
    assert host.complete(job) == 2


def test_nothing_is_known_of_a_stranger() -> None:
    host, job = HostPool(4), make_job()
    host.spoil(job, 0)
    host.drop(job)
    assert (host.held(job), host.complete(job), host.in_flight(job)) == (0, 0, 0)


def test_more_than_was_reserved_cannot_be_complete() -> None:
    host, job = HostPool(4), make_job()
    host.reserve(job, 2)
    with pytest.raises(AssertionError):
        host.commit(job, 3)


@UNTIMED
@given(
    num_blocks=st.integers(0, 10),
    calls=st.lists(
        st.tuples(
            st.sampled_from(["reserve", "commit", "spoil", "drop"]), st.integers(0, 2), st.integers(0, 6)
        )
    ),
)
def test_blocks_are_conserved(num_blocks: int, calls: list[tuple[str, int, int]]) -> None:
    host, jobs = HostPool(num_blocks), [make_job(name) for name in "abc"]
    for call, number, blocks in calls:
        job = jobs[number]
        if call == "reserve":
            host.reserve(job, blocks)
        elif call == "commit" and host.held(job):
            host.commit(job, min(blocks, host.held(job)))
        elif call == "spoil":
            host.spoil(job, blocks)
        elif call == "drop":
            host.drop(job)
        host.check()
        assert sum(host.held(each) for each in jobs) == num_blocks - host.free_blocks
