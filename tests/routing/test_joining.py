from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headway.routing.batch import Batch
from headway.routing.joining import FixedSize, LeastWaste
from headway.routing.wma import wma
from tests.routing.batches import batch, member

pairs = st.tuples(st.integers(1, 40), st.integers(1, 40))


def least_waste(**settings: Any) -> LeastWaste:
    return LeastWaste(**{"capacity_tokens": 10_000, "wma_limit": 50_000, **settings})


def test_it_joins_the_batch_that_wastes_least_by_hand() -> None:
    # With (12, 14) the batch of (10, 10) wastes 114; that of (100, 100) wastes 14 x 88 of padding and 86 steps
    # over 100 + (14 + 99) / 2: 1232 + 13459 = 14691.
    short, long = batch(0, (10, 10)), batch(1, (100, 100))
    assert least_waste().join(member(12, 14), [long, short]) is short
    assert least_waste().join(member(12, 14), [long]) is long


def test_the_limit_itself_is_too_much() -> None:
    short = batch(0, (10, 10))
    assert least_waste(wma_limit=115).join(member(12, 14), [short]) is short
    assert least_waste(wma_limit=114).join(member(12, 14), [short]) is None


def test_of_equal_batches_the_oldest() -> None:
    older, newer = batch(0, (10, 10)), batch(1, (10, 10))
    assert least_waste().join(member(10, 10), [older, newer]) is older


def test_memory_is_kept_for_every_seat_at_the_longest_by_hand() -> None:
    # Three seats of 12 + 14 tokens: 78.
    two = batch(0, (10, 10), (10, 10))
    assert least_waste(capacity_tokens=78).join(member(12, 14), [two]) is two
    assert least_waste(capacity_tokens=77).join(member(12, 14), [two]) is None


def test_memory_is_kept_in_whole_blocks_by_hand() -> None:
    # 12 + 14 = 26 tokens are four blocks of 8: three seats take 96 tokens of room.
    two = batch(0, (10, 10), (10, 10))
    assert least_waste(capacity_tokens=96, block_tokens=8).join(member(12, 14), [two]) is two
    assert least_waste(capacity_tokens=95, block_tokens=8).join(member(12, 14), [two]) is None


def test_a_batch_that_is_full_is_passed_over() -> None:
    full, other = batch(0, (10, 10), (10, 10)), batch(1, (30, 30))
    assert least_waste(max_size=2).join(member(10, 10), [full, other]) is other


def test_the_inclusive_sum_can_be_asked_for() -> None:
    short = batch(0, (10, 10))
    assert least_waste(wma_limit=140, inclusive=True).join(member(12, 14), [short]) is None
    assert least_waste(wma_limit=141, inclusive=True).join(member(12, 14), [short]) is short


@given(
    st.lists(st.lists(pairs, min_size=1, max_size=4), max_size=5),
    pairs,
    st.integers(1, 400),
    st.integers(1, 2000),
)
def test_it_is_algorithm_1(
    queued: list[list[tuple[int, int]]], new: tuple[int, int], capacity: int, limit: int
) -> None:
    best, least = None, float("inf")
    for number, members in enumerate(queued):
        grown = [*members, new]
        needed = len(grown) * (max(prompt for prompt, _ in grown) + max(output for _, output in grown))
        waste = wma(grown) if needed <= capacity else float("inf")
        if waste < least:
            best, least = number, waste
    expected = best if least < limit else None
    batches = [batch(number, *members) for number, members in enumerate(queued)]
    joined = least_waste(capacity_tokens=capacity, wma_limit=limit).join(member(*new), batches)
    assert (joined.number if joined else None) == expected


def test_batches_of_fixed_size_fill_in_the_order_of_arrival() -> None:
    full, newest = batch(0, (9, 9), (1, 1)), batch(1, (500, 1))
    rule = FixedSize(2)
    assert rule.join(member(9, 9), [full, newest]) is newest
    newest.add(member(9, 9))
    assert rule.join(member(9, 9), [full, newest]) is None
    nobody: list[Batch] = []
    assert rule.join(member(9, 9), nobody) is None
