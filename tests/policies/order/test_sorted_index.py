from __future__ import annotations

import pytest

from headway.policies.order.sorted_index import SortedIndex
from tests.strategies import ids, make_job

A, B, C = make_job("a"), make_job("b"), make_job("c")


def filled() -> SortedIndex:
    """b under 1, a under 2, c under 3."""
    index = SortedIndex()
    for job, key in ((A, (2.0,)), (C, (3.0,)), (B, (1.0,))):
        index.insert(job, key)
    return index


def test_jobs_stand_in_key_order() -> None:
    index = filled()
    assert ids(index.slice(0, 9)) == ["b", "a", "c"]
    assert (ids(index.slice(1, 2)), index.at(2), len(index)) == (["a"], C, 3)


@pytest.mark.parametrize(("key", "below"), [(0.0, 0), (1.0, 0), (1.5, 1), (2.0, 1), (3.0, 2), (4.0, 3)])
def test_position_counts_the_keys_below(key: float, below: int) -> None:
    assert filled().position((key,)) == below


def test_holds_asks_for_the_job_under_that_very_key() -> None:
    index = filled()
    assert index.holds(A, (2.0,))
    assert not index.holds(A, (1.0,))
    assert not index.holds(B, (2.0,))
    assert not index.holds(C, (9.0,))


def test_remove_takes_out_one_job() -> None:
    index = filled()
    index.remove(A, (2.0,))
    assert ids(index.slice(0, 9)) == ["b", "c"]
    assert index.position((9.0,)) == 2


def test_removing_a_job_under_another_key_is_a_fault() -> None:
    with pytest.raises(AssertionError):
        filled().remove(A, (1.0,))
