from __future__ import annotations

from bisect import bisect_left, insort
from random import Random

import pytest

from headway.policies.order.sorted_index import SortedIndex
from tests.strategies import make_job

A, B, C = make_job("a"), make_job("b"), make_job("c")


def filled() -> SortedIndex:
    """b under 1, a under 2, c under 3."""
    index = SortedIndex()
    for job, key in ((A, (2.0,)), (C, (3.0,)), (B, (1.0,))):
        index.insert(job, key)
    return index


def test_holds_asks_for_the_job_under_that_very_key() -> None:
    index = filled()
    assert index.holds(A, (2.0,))
    assert not index.holds(A, (1.0,))
    assert not index.holds(B, (2.0,))
    assert not index.holds(C, (9.0,))


def test_removing_a_job_under_another_key_is_a_fault() -> None:
    with pytest.raises(AssertionError):
        filled().remove(A, (1.0,))


@pytest.mark.parametrize("seed", range(3))
def test_a_long_index_is_a_sorted_list(seed: int) -> None:
    # Long enough to be kept in several blocks; keys in pairs that differ in their last place alone.
    random = Random(seed)
    index, expected = SortedIndex(), list[tuple[float, int]]()
    jobs = {(float(n // 2), n): make_job(str(n)) for n in range(2500)}
    for key in random.sample(sorted(jobs), len(jobs)):
        index.insert(jobs[key], key)
        insort(expected, key)
        if random.random() < 0.4:
            gone = expected.pop(random.choice([0, -1, random.randrange(len(expected))]))
            assert index.holds(jobs[gone], gone)
            index.remove(jobs[gone], gone)
            assert not index.holds(jobs[gone], gone)
    assert len(index) == len(expected)
    assert index.slice(0, len(index)) == [jobs[key] for key in expected]
    for _ in range(100):
        probe, start, length = random.choice(expected), random.randrange(len(expected)), random.randrange(600)
        assert index.position(probe) == expected.index(probe)
        assert index.position(probe[:1]) == bisect_left(expected, probe[:1])
        assert index.at(start) is jobs[expected[start]]
        assert index.slice(start, start + length) == [jobs[key] for key in expected[start : start + length]]
        first, last = sorted((probe[:1], random.choice(expected)))
        among = expected[bisect_left(expected, first) : bisect_left(expected, last)]
        assert index.between(first, last, length) == [jobs[key] for key in among[:length]]
    for key in random.sample(expected, len(expected)):
        index.remove(jobs[key], key)
    assert (len(index), index.slice(0, 9), index.position((0.0,))) == (0, [], 0)
    assert index.between((0.0,), (9.0,), 9) == []
