from __future__ import annotations

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.policies.recent_lengths import RecentLengths


def after(answers: list[int], window: int = 1000) -> RecentLengths:
    """The estimator after these answers."""
    lengths = RecentLengths(window)
    for tokens in answers:
        lengths.add(tokens)
    return lengths


def test_by_hand() -> None:
    ten = after(list(range(10, 110, 10)))
    assert not after([])
    assert (len(ten), ten.mean, ten.at(0.5), ten.at(0.9)) == (10, 55, 60, 100)
    assert after([7]).at(0.9) == 7
    assert after([1000, 1, 2, 3], window=3).mean == 2


@pytest.mark.parametrize("share", [0.5, 0.9])
@given(answers=st.lists(st.integers(1, 50), min_size=1, max_size=60), window=st.integers(1, 20))
def test_only_the_last_count(share: float, answers: list[int], window: int) -> None:
    lengths, last = after(answers, window), sorted(answers[-window:])
    assert lengths.ascending == last
    assert lengths.mean == pytest.approx(fmean(last))
    found = lengths.at(share)
    assert found in last
    assert sum(tokens < found for tokens in last) <= share * len(last)
    assert sum(tokens > found for tokens in last) <= (1 - share) * len(last)
