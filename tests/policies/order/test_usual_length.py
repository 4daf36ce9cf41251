from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.length_estimate import LengthEstimate
from headway.policies.order.remaining_work import UsualLength
from tests.strategies import UNTIMED


def after(*lengths: int) -> LengthEstimate:
    """What is usual after answers of these lengths."""
    usual = UsualLength()
    for tokens in lengths:
        usual.learn(tokens)
    assert usual.estimate is not None
    return usual.estimate


def test_nothing_is_usual_before_the_first() -> None:
    assert UsualLength().estimate is None


def test_the_first_few_say_where_and_not_how_far() -> None:
    first = after(10, 190)
    assert (first.tokens, first.low_tokens, first.high_tokens) == (100.0, 50.0, 200.0)


def test_the_interval_is_as_wide_as_answers_are_unlike() -> None:
    # Of these one in ten lies below 80 and one in ten above 180: as far apart as 1.5 either way. Their mean is 130.
    some = after(*[80, 180] * 5)
    assert (some.low_tokens, some.tokens, some.high_tokens) == pytest.approx((130 / 1.5, 130.0, 130 * 1.5))


def test_it_is_never_a_point_and_never_wider_than_three() -> None:
    assert after(*[50] * 9).high_tokens == pytest.approx(55.0)
    assert after(*[10, 1000] * 9).high_tokens == pytest.approx(3 * 505.0)


def test_the_more_unlike_they_are_the_more_an_old_answer_has_yet_to_bring() -> None:
    alike, unlike = after(*[505] * 10), after(*[10, 1000] * 5)
    assert alike.remaining_tokens(500) < unlike.remaining_tokens(500)


def test_it_follows_the_traffic() -> None:
    # The last 400 count: 200 of 1,000 tokens and 200 of 10.
    assert after(*[1000] * 400, *[10] * 200).tokens == pytest.approx(505.0)


def test_which_are_longer_than_so_many_tokens() -> None:
    usual = UsualLength()
    for tokens in (30, 10, 20, 40, 50, 0):
        usual.learn(tokens)
    assert list(usual.longer_than(0, 9)) == [1, 10, 20, 30, 40, 50]
    assert list(usual.longer_than(20, 9)) == [30, 40, 50]
    assert list(usual.longer_than(50, 9)) == []
    # Three stand for six: the middles of their thirds.
    assert list(usual.longer_than(0, 3)) == [10, 30, 50]


@UNTIMED
@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=50))
def test_it_lies_among_what_came_and_inside_its_interval(lengths: list[int]) -> None:
    usual = after(*lengths)
    assert max(1, min(lengths)) * 0.999 <= usual.tokens <= max(1, *lengths) * 1.001
    assert usual.low_tokens < usual.tokens < usual.high_tokens
