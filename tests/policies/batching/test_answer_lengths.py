from __future__ import annotations

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.policies.batching.answer_lengths import AnswerLengths


def after(answers: list[int], statistic: str = "mean", window: int = 1000) -> float:
    """What is expected after these."""
    lengths = AnswerLengths(statistic, window)
    for tokens in answers:
        lengths.add(tokens)
    return lengths.expected_tokens


def test_by_hand() -> None:
    ten = list(range(10, 110, 10))
    assert after([]) == 0
    assert after(ten) == 55
    assert (after(ten, "p50"), after(ten, "p90")) == (60, 100)
    assert after([7], "p90") == 7
    assert after([1000, 1, 2, 3], window=3) == 2


@pytest.mark.parametrize("statistic", ["mean", "p50", "p90"])
@given(answers=st.lists(st.integers(1, 50), min_size=1, max_size=60), window=st.integers(1, 20))
def test_only_the_last_count(statistic: str, answers: list[int], window: int) -> None:
    last = sorted(answers[-window:])
    expected = after(answers, statistic, window)
    if statistic == "mean":
        assert expected == pytest.approx(fmean(last))
        return
    share = int(statistic[1:]) / 100
    assert expected in last
    assert sum(tokens < expected for tokens in last) <= share * len(last)
    assert sum(tokens > expected for tokens in last) <= (1 - share) * len(last)
