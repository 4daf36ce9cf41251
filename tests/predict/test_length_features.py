from __future__ import annotations

import subprocess
import sys
from math import log

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.predict.lengths.facts import RequestFacts
from headway.predict.lengths.features import FEATURES, HASHED, PLAIN, READ_CHARS, length_features


def facts(user_input: str, num_prompt_tokens: int = 10) -> RequestFacts:
    return RequestFacts(
        num_prompt_tokens=num_prompt_tokens, max_output_tokens=99, instruction="Do it.", user_input=user_input
    )


def words(text: str) -> npt.NDArray[np.float64]:
    return length_features(facts(text)).text[PLAIN:]


def test_numbers_of_a_text_by_hand() -> None:
    found = length_features(facts("Is it 猫?\nYes", num_prompt_tokens=20))
    # Is, it, 猫, Yes and the mark; 猫 has three bytes, so there are 14 in all.
    assert found.log_input == pytest.approx(log(5))
    assert found.log_prompt == pytest.approx(log(20))
    assert found.text[:PLAIN] == pytest.approx([1, log(20) - 5, 1 / 5, log(14 / 5) - 1.5, 40 / 12, 1 / 5, 0])
    assert length_features(facts("Is it?  ")).text[PLAIN - 1] == 1.0


def test_without_a_text_the_prompt_is_the_input() -> None:
    found = length_features(facts("", num_prompt_tokens=20))
    assert found.log_input == found.log_prompt == pytest.approx(log(20))
    assert not found.text[2:].any()


def test_case_and_marks_say_nothing_of_a_word_but_where_it_stands_does() -> None:
    assert np.array_equal(words("Write code, please"), words("write CODE please!"))
    assert not np.array_equal(words("dog bites man"), words("man bites dog"))
    one, alike, unlike = (
        words("write a poem of cats"),
        words("write a poem of dogs"),
        words("def f(x): return x"),
    )
    assert one @ alike > 0.4 > abs(one @ unlike)


def test_chinese_has_a_word_for_each_character() -> None:
    assert words("我有猫和狗") @ words("我有猫和鸟") > 0.5
    assert length_features(facts("我有猫和狗")).log_input == pytest.approx(log(5))


def test_the_middle_of_a_long_text_is_not_read() -> None:
    start, end = "a " * (READ_CHARS // 4), " b" * (READ_CHARS // 4)
    one, other = (length_features(facts(start + middle + end)) for middle in ("these", "are others" * 50))
    assert np.array_equal(one.text[PLAIN:], other.text[PLAIN:])
    assert other.log_input > one.log_input


@given(st.text(max_size=100), st.integers(0, 10**6))
def test_every_request_has_finite_numbers_and_words_of_length_one(text: str, tokens: int) -> None:
    found = length_features(facts(text, tokens))
    assert found.text.shape == (FEATURES,)
    assert np.isfinite([found.log_input, found.log_prompt, *found.text]).all()
    length = float(np.linalg.norm(found.text[PLAIN:]))
    assert length == pytest.approx(1.0) or length == 0.0
    assert len(found.text) == PLAIN + HASHED


def test_another_process_computes_the_same() -> None:
    code = (
        "from headway.predict.lengths.features import *; from headway.predict.lengths.facts import RequestFacts\n"
        "facts = RequestFacts(num_prompt_tokens=5, max_output_tokens=9, user_input='wie alt?')\n"
        "print(length_features(facts).text.tobytes().hex())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    mine = RequestFacts(num_prompt_tokens=5, max_output_tokens=9, user_input="wie alt?")
    assert found.strip() == length_features(mine).text.tobytes().hex()
