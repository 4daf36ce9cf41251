from __future__ import annotations

from math import expm1, isnan, log1p

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.predict.history_features import HistoryFeatures, LastAnswers
from headway.predict.length import RequestFacts


def of(tenant: str, num_prompt_tokens: int = 9) -> RequestFacts:
    return RequestFacts(num_prompt_tokens=num_prompt_tokens, max_output_tokens=99, tenant=tenant)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=250))
def test_the_last_hundred_are_summed_up(answers: list[int]) -> None:
    last = LastAnswers()
    for tokens in answers:
        last.add(tokens)
    kept = sorted(answers[-100:])
    low, middle, high, mean, latest, count = map(expm1, last.features())
    # The smallest with at least a tenth, a half, nine tenths of them before it.
    wanted = [kept[min(int(share * len(kept)), len(kept) - 1)] for share in (0.1, 0.5, 0.9)]
    assert [low, middle, high] == pytest.approx(wanted)
    assert (mean, latest, count) == pytest.approx((np.mean(kept), answers[-1], len(kept)))


def test_nothing_is_known_of_a_tenant_who_never_came() -> None:
    features = HistoryFeatures()
    features.ended(of("a"), 7)
    (row,) = features.rows([of("b")])
    assert row[:2] == pytest.approx([log1p(9), log1p(99)])
    assert all(isnan(value) for value in row[2:7])
    assert row[7] == 0.0
    assert row[8:] == pytest.approx([log1p(7)] * 5 + [log1p(1)])
    assert features.rows([of("a")])[0][2:8] == pytest.approx(row[8:])


def test_a_tenant_who_has_not_come_for_long_is_forgotten() -> None:
    features = HistoryFeatures()
    features.ended(of("first"), 7)
    for number in range(1023):
        features.ended(of(str(number)), 7)
    features.ended(of("first"), 8)
    features.ended(of("new"), 7)
    known = [not isnan(row[2]) for row in features.rows([of("first"), of("0"), of("1"), of("new")])]
    assert known == [True, False, True, True]


def test_no_requests_are_no_rows() -> None:
    assert HistoryFeatures().rows([]).shape == (0, HistoryFeatures.num_features)
