from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headway.predict.length_rows import LengthRows


def filled(count: int, max_rows: int, seed: int = 0) -> LengthRows:
    rows = LengthRows(2, max_rows, seed)
    for number in range(count):
        rows.add(np.array([number, -number], dtype=np.float32), float(number))
    return rows


@given(count=st.integers(0, 300), max_rows=st.integers(1, 200), seed=st.integers(0, 5))
def test_rows_stay_whole_and_few(count: int, max_rows: int, seed: int) -> None:
    features, tokens = filled(count, max_rows, seed).copy()
    assert features.shape == (min(count, max_rows), 2)
    assert len(set(tokens)) == len(tokens)  # each added once, each kept at most once
    assert (features[:, 0] == tokens).all()
    assert (features[:, 1] == -tokens).all()
    if count <= max_rows:
        assert list(tokens) == list(range(count))
    else:
        assert count - 1 in tokens  # the newest is always kept


def test_old_rows_fade_instead_of_falling_off() -> None:
    _, tokens = filled(2000, 1000).copy()
    # Of 1,000 rows each stays with probability (1 - 1/1000)^1000 = 0.37 after another 1,000 came.
    assert 320 < (tokens < 1000).sum() < 420


def test_the_same_answers_leave_the_same_rows() -> None:
    assert np.array_equal(filled(500, 50, seed=4).copy()[1], filled(500, 50, seed=4).copy()[1])
    assert not np.array_equal(filled(500, 50, seed=4).copy()[1], filled(500, 50, seed=5).copy()[1])


def test_a_copy_does_not_change_any_more() -> None:
    rows = filled(10, 10)
    _, tokens = rows.copy()
    rows.add(np.zeros(2, dtype=np.float32), 99.0)
    assert 99.0 not in tokens
