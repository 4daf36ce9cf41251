from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.gateway.fleet.supervisor import Backoff, how_it_ended


def test_waits_double_up_to_the_longest_and_begin_again_after_rest() -> None:
    backoff = Backoff(first_s=1.0, longest_s=60.0, rest_s=60.0)
    assert [backoff.ended(served_s=5.0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert backoff.ended(served_s=59.9) == 60
    assert [backoff.ended(served_s=60.0), backoff.ended(served_s=0.0)] == [1, 2]


@given(st.lists(st.floats(0, 100), max_size=200), st.floats(0.01, 10), st.floats(1, 100))
def test_waits_stay_within_their_limits(served_s: list[float], first_s: float, factor: float) -> None:
    backoff = Backoff(first_s, longest_s=first_s * factor, rest_s=50.0)
    for lived_s in served_s:
        assert first_s <= backoff.ended(lived_s) <= first_s * factor


def test_a_process_that_ends_all_the_time_never_waits_too_long() -> None:
    backoff = Backoff()
    assert max(backoff.ended(0.0) for _ in range(5000)) == backoff.longest_s


@pytest.mark.parametrize(
    ("code", "last_words", "told"),
    [
        (-9, "", "ended by signal 9"),
        (0, "", "ended with code 0"),
        (1, "no memory", "ended with code 1: no memory"),
    ],
)
def test_how_it_ended(code: int, last_words: str, told: str) -> None:
    assert how_it_ended(code, last_words) == told
