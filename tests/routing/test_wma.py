from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.routing.wma import tokens_read, wma
from tests.routing.batches import batch, member

Lengths = list[tuple[int, int]]
lengths = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=8)


def as_printed(members: Lengths, *, inclusive: bool) -> int:
    """The paper's equations, term by term."""
    longest_prompt = max(prompt for prompt, _ in members)
    longest = max(output for _, output in members)
    wastes = []
    for prompt, output in members:
        padding = output * (longest_prompt - prompt)
        steps = range(output, longest + 1 if inclusive else longest)
        wastes.append(padding + sum(step + longest_prompt for step in steps))
    return max(wastes)


@pytest.mark.parametrize(
    ("members", "half_open"),
    [
        ([(7, 9)], 0),
        # (10, 10): 10 x 2 of padding, then waiting from 10 to 14: 20 + (22 + 23 + 24 + 25). The other wastes nothing.
        ([(10, 10), (12, 14)], 114),
        # (90, 80): 80 x 10 of padding, and 20 steps over 100 + (80 + 99) / 2: 800 + 3790.
        ([(100, 100), (90, 80)], 4590),
        ([(1000, 1000), (10, 10)], 1_499_355),
        ([(500, 500), (450, 450)], 71_225),
        ([(1000, 1000), (970, 970)], 88_635),
        ([(150, 150), (50, 50)], 29_950),
    ],
)
def test_worked_numbers(members: Lengths, half_open: int) -> None:
    assert wma(members) == half_open


@pytest.mark.parametrize(
    ("members", "inclusive"),
    # One more step for every member, the longest included: 114 + 12 + 14, 4590 + 100 + 100, and 7 + 9 alone.
    [([(10, 10), (12, 14)], 140), ([(100, 100), (90, 80)], 4790), ([(7, 9)], 16)],
)
def test_the_inclusive_sum_charges_every_member_one_more_step(members: Lengths, inclusive: int) -> None:
    assert wma(members, inclusive=True) == inclusive


def test_it_is_a_maximum_and_not_a_sum() -> None:
    # Twice the member that wastes 114 wastes no more than once.
    assert wma([(10, 10), (10, 10), (12, 14)]) == 114


@given(lengths, st.booleans())
def test_it_is_what_the_paper_prints(members: Lengths, inclusive: bool) -> None:
    assert wma(members, inclusive=inclusive) == as_printed(members, inclusive=inclusive)


@given(lengths, st.tuples(st.integers(1, 60), st.integers(1, 60)), st.booleans())
def test_a_batch_knows_it_of_one_more_without_asking_all(
    members: Lengths, one_more: tuple[int, int], inclusive: bool
) -> None:
    grown = batch(0, *members).wma_with(member(*one_more), inclusive=inclusive)
    assert grown == as_printed([*members, one_more], inclusive=inclusive)


@given(st.integers(1, 50), st.integers(1, 50))
def test_a_seat_reads_its_prompt_and_what_it_has_written_at_every_step(prompt: int, output: int) -> None:
    assert tokens_read(prompt, output) == sum(prompt + step for step in range(output))
