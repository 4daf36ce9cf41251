from __future__ import annotations

import subprocess
import sys
from math import sqrt

import numpy as np
import pytest
from headway_reproduce.magnus import features as module
from headway_reproduce.magnus.features import (
    DIMENSIONS,
    HASHED_CHARS,
    MagnusFeatures,
    compressed,
    hash_encoded,
    user_input_tokens,
)
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.predict.lengths.facts import RequestFacts


@given(st.lists(st.text(max_size=80), max_size=4))
def test_a_text_encodes_alone_as_among_others(texts: list[str]) -> None:
    together = hash_encoded(texts)
    assert together.shape == (len(texts), DIMENSIONS)
    for text, vector in zip(texts, together, strict=True):
        assert np.array_equal(hash_encoded([text])[0], vector)


@given(st.text())
def test_each_half_has_length_one_or_nothing_in_it(text: str) -> None:
    words, letters = hash_encoded([text])[0].reshape(2, -1)
    for half in (words, letters):
        length = float(np.linalg.norm(half))
        assert length == pytest.approx(1.0, abs=1e-5) or length == 0.0


def test_texts_of_the_same_words_are_alike_and_their_order_counts() -> None:
    one, alike, unlike = hash_encoded(
        ["Translate this sentence into French.", "translate THIS text into French", "def f(x): return x"]
    )
    assert one @ alike > 0.8 > 0.3 > one @ unlike
    one, other = hash_encoded(["dog bites man", "man bites dog"])
    assert not np.allclose(one[: DIMENSIONS // 2], other[: DIMENSIONS // 2])


def test_the_middle_of_a_long_text_is_not_read() -> None:
    start, end = "a" * (HASHED_CHARS // 2), "b" * (HASHED_CHARS // 2)
    one, other = hash_encoded([start + "middle" + end, start + "quite another one" * 100 + end])
    assert np.array_equal(one, other)


def test_another_process_computes_the_same() -> None:
    code = f"from {module.__name__} import *; print(hash_encoded(['wie alt?']).tobytes().hex())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == hash_encoded(["wie alt?"]).tobytes().hex()


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


def test_without_texts_the_whole_prompt_is_input() -> None:
    assert user_input_tokens(facts("", "", num_prompt_tokens=17)) == 17.0
    assert user_input_tokens(facts("", "all of it", num_prompt_tokens=17)) == 17.0
    assert user_input_tokens(facts("all of it", "", num_prompt_tokens=17)) == 0.0


def test_a_very_long_text_counts_in_proportion() -> None:
    # 100,000 words of two characters; the first and last 32,768 characters are counted, 1 word in 2.
    assert user_input_tokens(facts("a", "b " * 100_000, 100_001)) == pytest.approx(100_000, rel=1e-4)


def test_twenty_one_features_many_as_one_by_one() -> None:
    features = MagnusFeatures()
    requests = [facts("do", "this"), facts("", "that"), facts("do", "")]
    together = features.rows(requests)
    assert np.array_equal(together, np.concatenate([features.rows([request]) for request in requests]))
    assert features.rows([]).shape == (0, 21)
    # The input's groups, the instruction's, and a prompt of 10 tokens of which half are the input's.
    assert together[0, :16] == pytest.approx(compressed(hash_encoded(["this"]), 16)[0])
    assert together[0, 16:20] == pytest.approx(compressed(hash_encoded(["do"]), 4)[0])
    assert together[0, 20] == 5.0


def test_an_instruction_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def noting(texts: list[str]) -> object:
        asked.extend(texts)
        return hash_encoded(texts)

    monkeypatch.setattr(module, "hash_encoded", noting)
    features = MagnusFeatures()
    for user_input in "abcd":
        features.rows([facts("the same", user_input)])
    assert asked.count("the same") == 1
    for number in range(300):
        features.rows([facts(f"other {number}", "x")])
    features.rows([facts("the same", "x")])
    assert asked.count("the same") == 2
