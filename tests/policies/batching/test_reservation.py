from __future__ import annotations

import pytest

from headway.core.view import StepView
from headway.policies.batching.reserved import reservable
from tests.strategies import decoding, ids, make_job


@pytest.mark.parametrize(
    ("total_blocks", "expected"),
    [(6, []), (7, ["a"]), (9, ["a"]), (10, ["a", "b"]), (99, ["a", "b", "c"])],
)
def test_the_leading_jobs_that_fit_beside_the_residents(total_blocks: int, expected: list[str]) -> None:
    # Blocks of 4. The resident's 10 + 6 tokens reserve 4, however few it holds now; a: 5 + 4 tokens: 3;
    # b: 8 + 4: 3; c: 40 + 1: 11.
    view = StepView(total_blocks=total_blocks, block_size=4, residents=[decoding("r", limit=6)])
    sizes = {"a": (5, 4), "b": (8, 4), "c": (40, 1)}
    jobs = [make_job(name, prompt=prompt, limit=limit) for name, (prompt, limit) in sizes.items()]
    assert ids(reservable(view, jobs)) == expected


def test_progress_changes_no_reservation() -> None:
    # A preempted job with 5 of its 10 tokens out still ends at 5 + 10: 4 blocks, so 2 more fit into 6.
    job = make_job("a", prompt=5, limit=10, num_output_tokens=5)
    two, three = make_job("b", prompt=4, limit=4), make_job("c", prompt=8, limit=4)
    assert reservable(StepView(total_blocks=6, block_size=4), [job, two]) == [job, two]
    assert reservable(StepView(total_blocks=6, block_size=4), [job, three]) == [job]


def test_a_limit_beyond_the_whole_pool_reserves_all_of_it_and_runs_alone() -> None:
    # 5 + 100 tokens are 27 blocks, the pool has 6.
    huge, small = make_job("huge", prompt=5, limit=100), make_job("small", prompt=1, limit=1)
    view = StepView(total_blocks=6, block_size=4)
    assert reservable(view, [huge, small]) == [huge]
    assert reservable(view, [small, huge]) == [small]
