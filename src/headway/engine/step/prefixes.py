"""What vLLM's prefix cache holds of the requests that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.job import Job
from headway.core.prefix_watch import PrefixWatch

if TYPE_CHECKING:
    from headway.engine.step.scheduler import PolicyScheduler

_GROUP = [0]
"""The one group of layers that there is."""


def prefix_watch_of(scheduler: PolicyScheduler) -> PrefixWatch | None:
    """A watch over a scheduler's prefix cache; None where the policy has no use for one, or there is none.

    Nor where layers keep their KV in several groups of blocks, or hash them otherwise than they hold them: then no
    single block stands for all before it.
    """
    manager, requests = scheduler.kv_cache_manager, scheduler.requests
    pool = manager.block_pool
    whole = scheduler.admission.one_block_for_all_layers and pool.hash_block_size == scheduler.block_size
    if not (scheduler.guard.policy.uses_prefixes and manager.enable_caching and whole):
        return None

    def finds(job: Job, index: int) -> bool:
        request = requests[job.id]
        if request.skip_reading_prefix_cache or index >= len(request.block_hashes):
            return False
        return pool.get_cached_block(request.block_hashes[index], _GROUP) is not None

    def changed(job: Job) -> None:
        scheduler.guard.touch(job)

    return PrefixWatch(finds, scheduler.block_size, changed)
