from __future__ import annotations

from collections.abc import Sequence
from math import expm1, isnan, log1p, sqrt

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.predict.lengths.encoders import HashEncoder
from headway.predict.lengths.facts import RequestFacts
from headway.predict.lengths.features import (
    HistoryFeatures,
    LastAnswers,
    MagnusFeatures,
    compressed,
    user_input_tokens,
)


class Counting:
    """An encoder that notes what it was asked: every dimension of a text is its number of characters."""

    name = "counting"
    dimensions = 32

    def __init__(self) -> None:
        self.asked: list[str] = []

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        self.asked += texts
        return np.array([[float(len(text))] * self.dimensions for text in texts], dtype=np.float32)


def facts(instruction: str, user_input: str, num_prompt_tokens: int = 10) -> RequestFacts:
    return RequestFacts(
        num_prompt_tokens=num_prompt_tokens,
        max_output_tokens=100,
        instruction=instruction,
        user_input=user_input,
    )


def test_groups_by_hand() -> None:
    # Two groups of three: (1 + 2 + 3) / sqrt(3) and (4 + 5 + 6) / sqrt(3).
    rows = np.array([[1, 2, 3, 4, 5, 6]], dtype=np.float32)
    assert compressed(rows, 2)[0] == pytest.approx([6 / sqrt(3), 15 / sqrt(3)])
    # Four groups of six: sizes 2, 2, 1, 1.
    assert compressed(rows, 4)[0] == pytest.approx([3 / sqrt(2), 7 / sqrt(2), 5, 6])


@given(dimensions=st.integers(1, 40), groups=st.integers(1, 40))
def test_groups_are_even_and_lose_nothing(dimensions: int, groups: int) -> None:
    rows = np.ones((2, dimensions), dtype=np.float32)
    if groups > dimensions:
        with pytest.raises(ConfigError, match="groups"):
            compressed(rows, groups)
        return
    # A group of n ones is n / sqrt(n), so its square is its size.
    sizes = compressed(rows, groups)[1] ** 2
    assert sizes.sum() == pytest.approx(dimensions, rel=1e-5)
    assert sizes.max() - sizes.min() < 1.001


def test_twenty_one_features_by_hand() -> None:
    features = MagnusFeatures(Counting())
    (row,) = features.rows([facts("Say it:", "a bc", num_prompt_tokens=10)])
    assert features.num_features == len(row) == 21
    # The input has 4 characters: groups of 32 / 16 = 2 dimensions, 8 / sqrt(2). The instruction 7: groups of 8.
    assert row[:16] == pytest.approx([8 / sqrt(2)] * 16)
    assert row[16:20] == pytest.approx([56 / sqrt(8)] * 4)
    # Two words of the input beside two words and a mark: 2 / 5 of the prompt.
    assert row[20] == pytest.approx(4.0)


def test_without_texts_the_whole_prompt_is_input() -> None:
    assert user_input_tokens(facts("", "", num_prompt_tokens=17)) == 17.0
    assert user_input_tokens(facts("", "all of it", num_prompt_tokens=17)) == 17.0
    assert user_input_tokens(facts("all of it", "", num_prompt_tokens=17)) == 0.0


def test_a_very_long_text_counts_in_proportion() -> None:
    # 100,000 words of two characters; the first and last 32,768 characters are counted, 1 word in 2.
    assert user_input_tokens(facts("a", "b " * 100_000, 100_001)) == pytest.approx(100_000, rel=1e-4)


def test_an_instruction_is_encoded_once() -> None:
    encoder = Counting()
    features = MagnusFeatures(encoder)
    for user_input in "abcd":
        features.rows([facts("the same", user_input)])
    assert encoder.asked.count("the same") == 1
    for number in range(300):
        features.rows([facts(f"other {number}", "x")])
    features.rows([facts("the same", "x")])
    assert encoder.asked.count("the same") == 2


def test_many_are_as_one_by_one() -> None:
    features = MagnusFeatures(HashEncoder())
    requests = [facts("do", "this"), facts("", "that"), facts("do", "")]
    together = features.rows(requests)
    assert np.array_equal(together, np.concatenate([features.rows([request]) for request in requests]))
    assert features.rows([]).shape == (0, 21)


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
