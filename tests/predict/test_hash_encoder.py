from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.predict.encoders import text_encoder
from headway.predict.hash_encoder import DIMENSIONS, MAX_CHARS, HashEncoder

ENCODER = HashEncoder()


@given(st.lists(st.text(max_size=80), max_size=4))
def test_a_text_encodes_alone_as_among_others(texts: list[str]) -> None:
    together = ENCODER.encode(texts)
    assert together.shape == (len(texts), DIMENSIONS)
    for text, vector in zip(texts, together, strict=True):
        assert np.array_equal(ENCODER.encode([text])[0], vector)


@given(st.text())
def test_each_half_has_length_one_or_nothing_in_it(text: str) -> None:
    words, letters = ENCODER.encode([text])[0].reshape(2, -1)
    for half in (words, letters):
        length = float(np.linalg.norm(half))
        assert length == pytest.approx(1.0, abs=1e-5) or length == 0.0


def test_texts_of_the_same_words_are_alike() -> None:
    one, alike, unlike = ENCODER.encode(
        ["Translate this sentence into French.", "translate THIS text into French", "def f(x): return x"]
    )
    assert one @ alike > 0.8 > 0.3 > one @ unlike


def test_the_order_of_words_counts() -> None:
    one, other = ENCODER.encode(["dog bites man", "man bites dog"])
    assert not np.allclose(one[: DIMENSIONS // 2], other[: DIMENSIONS // 2])


def test_the_middle_of_a_long_text_is_not_read() -> None:
    start, end = "a" * (MAX_CHARS // 2), "b" * (MAX_CHARS // 2)
    one, other = ENCODER.encode([start + "middle" + end, start + "quite another one" * 100 + end])
    assert np.array_equal(one, other)


def test_another_process_computes_the_same() -> None:
    code = "from headway.predict.hash_encoder import *; print(HashEncoder().encode(['wie alt?']).tobytes().hex())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == ENCODER.encode(["wie alt?"]).tobytes().hex()


@pytest.mark.parametrize("spec", ["", "labse", "st:", "st", "hash:3", "minilm:x"])
def test_an_unknown_encoder_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown encoder .*; accepted: hash, minilm, st:"):
        text_encoder(spec)
