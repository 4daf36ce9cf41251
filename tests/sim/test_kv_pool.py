from __future__ import annotations

import pytest

from headway.core.job import Job
from headway.core.plan import Fate, Reason
from headway.sim.kv_pool import KvPool
from tests.strategies import make_job


def pool(num_blocks: int = 8, *, caching: bool = True, watermark: int = 0) -> KvPool:
    return KvPool(num_blocks, block_size=4, prefix_caching=caching, watermark_blocks=watermark)


def start(pool: KvPool, id_: str, prompt: int, shared: tuple[int, ...] = ()) -> Job:
    """A job whose whole prompt is allocated and computed."""
    job = make_job(id_, prompt=prompt)
    pool.add(job, shared)
    cached = pool.cached_tokens(job)
    assert pool.start(job, prompt - cached) is None
    job.num_computed_tokens = prompt
    return job


def test_a_shared_block_is_found_from_its_allocation_on_and_held_twice() -> None:
    kv = pool()
    first = start(kv, "a", 9, (1, 2))  # three blocks, two of them full
    second = make_job("b", prompt=9)
    kv.add(second, (1, 3))
    assert kv.cached_tokens(second) == 4
    assert kv.start(second, 5) is None
    assert kv.free_blocks == 8 - 3 - 2
    kv.check([first, second])


def test_the_last_token_is_always_computed() -> None:
    kv = pool()
    start(kv, "a", 8, (1, 2))
    again = make_job("b", prompt=8)
    kv.add(again, (1, 2))
    assert kv.cached_tokens(again) == 4  # a hit on all 8 would leave nothing to compute


def test_a_freed_block_is_found_until_it_is_taken_oldest_first_tail_first() -> None:
    kv = pool(4)
    first = start(kv, "a", 9, (1, 2))
    kv.forget(
        first
    )  # the line: one never used, the third block (nothing to find), then block 2, then block 1
    assert kv.free_blocks == 4
    start(kv, "b", 12)  # takes three: the two empty ones and the one that held 2
    again = make_job("c", prompt=9)
    kv.add(again, (1, 2))
    assert kv.cached_tokens(again) == 4


def test_a_found_block_in_the_line_counts_against_the_free_ones() -> None:
    kv = pool(4)
    kv.forget(start(kv, "a", 9, (1, 2)))
    start(kv, "b", 4)
    again = make_job("c", prompt=13)
    kv.add(again, (1, 2))
    # 4 blocks in all, 2 found, both free: 2 new ones and the 2 found are 4, of 3 free.
    assert kv.cached_tokens(again) == 8
    assert kv.misfit(again) is Reason.ISL
    assert kv.missing_blocks(again) == 1


def test_a_found_block_that_somebody_holds_is_not_missing() -> None:
    kv = pool(4)
    start(kv, "a", 9, (1, 2))
    again = make_job("c", prompt=17)
    kv.add(again, (1, 2))
    # Of 5 blocks two are held by a already, and one is free.
    assert kv.missing_blocks(again) == 2
    start(kv, "b", 1)
    assert kv.missing_blocks(again) == 3


def test_the_whole_sequence_must_fit_although_only_a_chunk_is_wanted() -> None:
    kv = pool(2)
    job = make_job("a", prompt=9)
    kv.add(job)
    assert kv.start(job, 1) is Reason.ISL
    assert kv.free_blocks == 2


def test_the_watermark_holds_only_beside_others() -> None:
    kv = pool(3, watermark=1)
    start(kv, "a", 4)
    second = make_job("b", prompt=8)
    kv.add(second)
    assert kv.misfit(second) is Reason.WATERMARK
    assert kv.missing_blocks(second) == 1
    alone = pool(3, watermark=1)
    start(alone, "c", 12)


def test_growing_takes_a_block_when_the_last_is_full_and_none_when_there_is_none() -> None:
    kv = pool(2)
    job = start(kv, "a", 8)
    job.num_output_tokens = 1
    assert not kv.grow(job, 1)
    assert kv.free_blocks == 0
    roomy = pool(3)
    job = start(roomy, "a", 8)
    job.num_output_tokens = 1
    assert roomy.grow(job, 1)
    assert roomy.free_blocks == 0


def test_generated_tokens_are_found_by_their_own_job_alone() -> None:
    kv = pool()
    job = start(kv, "a", 4)
    for _ in range(4):
        job.num_output_tokens += 1
        assert kv.grow(job, 1)
        job.num_computed_tokens += 1
    kv.release(job, Fate.RECOMPUTE)
    job.num_output_tokens += 1
    assert kv.cached_tokens(job) == 8
    other = make_job("b", prompt=9)
    kv.add(other)
    assert kv.cached_tokens(other) == 0


@pytest.mark.parametrize("caching", [True, False])
def test_all_blocks_come_back(caching: bool) -> None:
    kv = pool(caching=caching)
    jobs = [start(kv, name, 9, (1, 2)) for name in "ab"]
    kv.check(jobs)
    for job in jobs:
        kv.forget(job)
    assert kv.free_blocks == 8
    kv.check([])


def test_without_prefix_caching_nothing_is_found() -> None:
    kv = pool(caching=False)
    start(kv, "a", 8, (1, 2))
    again = make_job("b", prompt=8)
    kv.add(again, (1, 2))
    assert kv.cached_tokens(again) == 0
