from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.predict.hash_encoder import HashEncoder
from headway.predict.length import RequestFacts
from headway.predict.magnus_features import MagnusFeatures, compressed, user_input_tokens


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
