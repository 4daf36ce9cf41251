from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import Job
from headway.core.view import StepView
from headway.policies.demand import new_blocks, surely_fits, within_host
from tests.strategies import decoding, prefilling


def test_a_decode_opens_a_block_when_the_last_one_is_full() -> None:
    # Blocks of 4. full has 8 tokens in two blocks, its next one opens a third; half has 6, room for two more.
    full, half = decoding("full", prompt=8), decoding("half", prompt=6)
    assert new_blocks(StepView(block_size=4), [full, half], 9) == {full: 1}


def test_a_decode_with_drafts_takes_them_all() -> None:
    # Four tokens each: full's third block holds them, and of half's two are in a third. Of 5 tokens half gets one.
    full, half = decoding("full", prompt=8), decoding("half", prompt=6)
    view = StepView(block_size=4, tokens_a_decode=4)
    assert new_blocks(view, [full, half], 9) == {full: 1, half: 1}
    assert new_blocks(view, [full, half], 5) == {full: 1}


def test_a_prompt_opens_as_many_as_its_chunk_fills() -> None:
    # 30 tokens, 6 computed in two blocks. 24 more fill 30: 8 blocks, so 6 new; capped to 7, 13 tokens: 2 new.
    # With a budget of 10, 16 tokens: 2 new.
    job = prefilling("a", prompt=30, computed=6)
    view = StepView(block_size=4)
    assert new_blocks(view, [job], 99) == {job: 6}
    assert new_blocks(view, [job], 99, {job: 7}) == {job: 2}
    assert new_blocks(view, [job], 10) == {job: 2}


def test_the_budget_goes_to_the_first_and_a_job_that_came_back_takes_none_of_it() -> None:
    a, b, back = decoding("a", prompt=4), decoding("b", prompt=4), decoding("back", prompt=4)
    view = StepView(block_size=4, returned=[back])
    assert new_blocks(view, [back, a, b], 1) == {a: 1}
    assert new_blocks(view, [a, b], 0) == {}


@given(
    sizes=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 39)), max_size=6),
    budget=st.integers(0, 60),
    block_size=st.integers(1, 16),
)
def test_what_surely_fits_does(sizes: list[tuple[int, int]], budget: int, block_size: int) -> None:
    jobs: list[Job] = [
        prefilling(str(number), prompt=prompt, computed=min(computed, prompt - 1))
        for number, (prompt, computed) in enumerate(sizes)
    ]
    needed = sum(new_blocks(StepView(block_size=block_size), jobs, budget).values())
    assert surely_fits(StepView(block_size=block_size, free_blocks=0), 0, 0)
    view = StepView(block_size=block_size, free_blocks=len(jobs) + budget // block_size)
    assert surely_fits(view, len(jobs), budget)
    assert needed <= view.free_blocks


@pytest.mark.parametrize(("host", "free"), [(20, 12), (18, 12), (17, 11), (3, 0), (0, 12)])
def test_a_device_bounded_by_the_host_holds_no_more_than_it(host: int, free: int) -> None:
    # Two residents of 10 computed tokens, 3 blocks of 4 each, and 12 free: of 17 on the host 11 are left beside them.
    view = StepView(
        residents=[decoding("a"), decoding("b")], free_blocks=12, host_total_blocks=host, block_size=4
    )
    assert within_host(view).free_blocks == free
