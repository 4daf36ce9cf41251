from __future__ import annotations

import pytest

from headway.core.job import Job, JobState
from headway.core.plan import Fate, Reason
from headway.sim.kv_pool import KvPool
from headway.sim.kv_tiers import HostTier
from tests.strategies import make_job


def tier_with_a_swapped_job(watermark_blocks: int = 0) -> tuple[HostTier, Job]:
    """8 free blocks of 4 tokens, and a job whose 8 computed tokens are on the host."""
    pool = KvPool(8, block_size=4, prefix_caching=False, watermark_blocks=watermark_blocks)
    tier = HostTier(pool, 8, restore_blocks=8, serial=False, in_flight=lambda job: False)
    swapped = make_job("swapped", prompt=8)
    pool.add(swapped)
    assert tier.start(swapped, 8) is None
    swapped.num_computed_tokens = 8
    assert tier.release(swapped, Fate.SWAP) is Fate.SWAP
    swapped.state = JobState.SWAPPED
    [copy] = tier.copies.started
    tier.copies.finish(copy)
    return tier, swapped


@pytest.mark.parametrize(("prompt", "misfit"), [(24, None), (28, Reason.BLOCKS)])
def test_who_comes_back_fits_if_a_prompt_that_has_begun_can_be_computed_to_its_end(
    prompt: int, misfit: Reason | None
) -> None:
    # The prompt holds one block of its 6, or 7; 7 are free. The job that comes back takes 2 and leaves 5, or 1 too few.
    tier, swapped = tier_with_a_swapped_job()
    begun = make_job("begun", prompt=prompt)
    tier.pool.add(begun)
    assert tier.start(begun, 4) is None
    assert tier.misfit(swapped) is misfit
    assert tier.start(swapped, 1) is misfit


def test_who_came_back_and_has_not_run_is_nobody_to_leave_blocks_for() -> None:
    # As in vLLM, whose watermark holds beside requests that run. The one that came back holds 2 of the 8 blocks its
    # tokens need; a newcomer may take the other 6, or it may run. Once it does, with 3, a newcomer is to leave one.
    tier, back = tier_with_a_swapped_job(watermark_blocks=1)
    back.num_output_tokens = 24
    assert tier.prefetch(back) is None
    newcomer = make_job("newcomer", prompt=24)
    tier.pool.add(newcomer)
    assert tier.misfit(newcomer) is None
    tier.copies.finish(tier.copies.started.pop())
    assert tier.resume(back, 4) is None
    newcomer.num_prompt_tokens = 20
    assert tier.misfit(newcomer) is Reason.WATERMARK


def test_what_a_copy_under_way_brings_is_sent_but_not_copied_yet() -> None:
    # 3 blocks, the last half full: once it is fuller, the copy does not show it truly, and it is to be sent.
    pool = KvPool(8, block_size=4, prefix_caching=False)
    copies = HostTier(pool, 8, restore_blocks=8, serial=False, in_flight=lambda job: False).copies
    job = make_job("job", prompt=10)
    pool.add(job)
    assert pool.start(job, 10) is None
    job.num_computed_tokens = 10
    sent = []
    for num_computed, under_way in ((10, False), (10, True), (11, True)):
        job.num_computed_tokens = num_computed
        if under_way and not copies.started:
            assert copies.offload(job) is None
        sent.append((copies.uncopied_blocks(job), copies.unsent_blocks(job)))
    assert sent == [(3, 3), (3, 0), (3, 1)]
    copies.finish(copies.started.pop())
    assert (copies.uncopied_blocks(job), copies.unsent_blocks(job)) == (1, 1)
