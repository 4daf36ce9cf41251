from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.core.host_copies import HostPool
from tests.strategies import UNTIMED, make_job


def test_blocks_are_reserved_each_for_one_job_and_then_free() -> None:
    host, job, other = HostPool(8), make_job("a"), make_job("b")
    assert host.reserve(job, 3)
    assert host.reserve(other, 5)
    assert sorted([*host.blocks(job), *host.blocks(other)]) == list(range(8))
    host.drop(job)
    assert (host.free_blocks, host.held(job), host.held(other)) == (3, 0, 5)
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


def test_nothing_is_known_of_a_stranger() -> None:
    host, job = HostPool(4), make_job()
    host.drop(job)
    assert (host.held(job), host.blocks(job)) == (0, ())


@UNTIMED
@given(
    num_blocks=st.integers(0, 10),
    calls=st.lists(st.tuples(st.sampled_from(["reserve", "drop"]), st.integers(0, 2), st.integers(0, 6))),
)
def test_blocks_are_conserved(num_blocks: int, calls: list[tuple[str, int, int]]) -> None:
    host, jobs = HostPool(num_blocks), [make_job(name) for name in "abc"]
    for call, number, blocks in calls:
        job = jobs[number]
        if call == "reserve":
            host.reserve(job, blocks)
        else:
            host.drop(job)
        host.check()
        assert sum(host.held(each) for each in jobs) == num_blocks - host.free_blocks
