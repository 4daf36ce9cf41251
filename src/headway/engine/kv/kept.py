"""Blocks of vLLM's pool that are kept for agent programs while their tools run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.core.job import Job
from headway.core.kept_programs import KeptPrograms
from headway.engine.step.admission import Admission
from headway.engine.step.ports import StepPort


class KeptVllmBlocks:
    """Gives `KeptPrograms` access to vLLM's block pool. A held reference protects a block from reuse, as a cache
    hit does.
    """

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._pool = manager.block_pool

    @property
    def free_blocks(self) -> int:
        """Blocks that can be allocated now."""
        free: int = self._pool.get_num_free_blocks()
        return free

    def keep(self, job: Job) -> Sequence[int]:
        """Hold references to those blocks of a request that other requests can find."""
        blocks = [self._pool.blocks[block] for block in self._manager.get_block_ids(job.id)[0]]
        found = [block for block in blocks if block.block_hash is not None]
        self._pool.touch(found)
        return [block.block_id for block in found]

    def let_go(self, blocks: Sequence[int]) -> None:
        """Release the references in vLLM's order: the last block is reused first."""
        self._pool.free_blocks([self._pool.blocks[block] for block in reversed(blocks)])


def kept_programs_of(engine: StepPort, admission: Admission) -> KeptPrograms | None:
    """Make the store of kept programs.

    None if the policy keeps nothing, or if a block does not imply all blocks before it.
    """
    manager, rule = engine.kv_cache_manager, engine.guard.policy.retention
    if rule is None or not (manager.enable_caching and admission.one_block_for_all_layers):
        return None
    has_store = engine.transfers is not None
    return KeptPrograms(KeptVllmBlocks(manager), rule, engine.view.total_blocks, has_store=has_store)
