"""KV memory of a simulated engine: vLLM's block pool, block for block."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from sys import maxsize

from headway.core.job import Job
from headway.core.plan import Fate, Reason

BlockKey = int
"""Identifies the contents of a full block. Equal keys mean equal contents of the block and all before it."""

OWN_KEYS = 1 << 24
"""Most blocks of one request. Its own keys are negative, so that they never equal a shared one."""


@dataclass(slots=True)
class Table:
    """The blocks of one live request. `shared` are the keys of its prompt's leading full blocks.

    `room_tokens` is the capacity of the blocks; once `cache_at_tokens` tokens are known the next block can be found.
    `started`: the request has had a step since it got its blocks; false for one that just came back from the host.
    """

    shared: Sequence[BlockKey]
    own: int
    blocks: list[int] = field(default_factory=list)
    num_cached: int = 0
    room_tokens: int = 0
    cache_at_tokens: int = 0
    started: bool = False

    def key(self, index: int) -> BlockKey:
        """The key of a full block of the request's tokens."""
        return self.shared[index] if index < len(self.shared) else self.own - index


class KvPool:
    """Paged KV memory with prefix caching, after vLLM 0.32 (v1/core/block_pool.py, kv_cache_manager.py).

    Free blocks stand in one line and are taken from its front. A job's blocks are freed last to first: those without
    findable contents to the front, the others to the back, where they can be found until they are taken. Blocks can be
    found from their allocation on, so a later admission of the same step hits them; blocks of generated tokens once
    these are known. A job hits at most its tokens but one, in whole blocks. The engine sets `not_ready`. Costs:
    O(blocks touched).

    A copy to or from the host pins its blocks: they stay until it is done, whatever becomes of the job. This pool has
    no host, so preempted KV is dropped; `sim.kv_tiers` adds a host or a store.
    """

    restoring: Collection[Job] = ()
    returned: Collection[Job] = ()

    def __init__(
        self, num_blocks: int, *, block_size: int, prefix_caching: bool, watermark_blocks: int = 0
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.watermark_blocks = watermark_blocks
        self.not_ready: dict[Job, Reason] = {}
        self._tables: dict[Job, Table] = {}
        self._num_started = 0
        self._serial = 0
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._references = [0] * num_blocks
        self._key_of: list[BlockKey | None] = [None] * num_blocks
        self._holders: dict[BlockKey, dict[int, None]] = {}
        # Without prefix caching no number of known tokens makes a block findable.
        self._cache_from_tokens = block_size if prefix_caching else maxsize
        self._looked_up: tuple[Job | None, list[int]] = (None, [])
        self._pins: Counter[int] = Counter()
        self._kept: Counter[int] = Counter()
        self._unfinished: dict[Job, None] = {}

    # ---- requests come and go ----------------------------------------------------------------------

    def add(self, job: Job, shared: Sequence[BlockKey] = ()) -> None:
        """Register a new request with the keys (0 or more) of its prompt's leading full blocks."""
        self._serial += 1
        self._tables[job] = Table(shared, -self._serial * OWN_KEYS, cache_at_tokens=self._cache_from_tokens)

    def forget(self, job: Job) -> None:
        """Remove an ended request, with whatever it still holds."""
        self._take_back(self._tables.pop(job))
        self._unfinished.pop(job, None)

    @property
    def free_blocks(self) -> int:
        """Blocks that can be allocated now, including those with findable contents."""
        return len(self._free)

    # ---- called by core.fill -----------------------------------------------------------------------

    def ready(self, job: Job) -> Reason | None:
        """Why a waiting job is skipped, as the engine has noted."""
        return self.not_ready.get(job)

    def finds(self, job: Job, index: int) -> bool:
        """Whether a block of a waiting job's tokens, by its index, is found in the pool. O(1)."""
        return bool(self._holders.get(self._tables[job].key(index)))

    def cached_tokens(self, job: Job) -> int:
        """Leading tokens of a waiting job that are found in the pool; remembered for `start`."""
        found = self._find(job)
        self._looked_up = (job, found)
        return len(found) * self.block_size

    def start(self, job: Job, num_tokens: int) -> Reason | None:
        """Allocate the found blocks and those of the next `num_tokens` tokens, if the whole job fits."""
        misfit = self._hold_found(job)
        if misfit is not None:
            return misfit
        self.started(job)
        table = self._tables[job]
        computed = table.num_cached * self.block_size + num_tokens
        self._extend(table, self.blocks_for(computed))
        if computed >= table.cache_at_tokens:
            self._cache(table, min(computed, job.num_tokens))
        if computed < job.num_tokens:
            self._unfinished[job] = None
        return None

    def _hold_found(self, job: Job) -> Reason | None:
        """Give a job the blocks found for it, if all its tokens fit."""
        looked_up, found = self._looked_up
        if looked_up is not job:
            found = self._find(job)
        self._looked_up = (None, [])
        misfit = self._misfit(job, found)
        if misfit is not None:
            return misfit
        table = self._tables[job]
        for block in found:
            if not self._references[block]:
                del self._free[block]
            self._references[block] += 1
        table.blocks.extend(found)
        table.num_cached = len(found)
        return None

    def grow(self, job: Job, num_tokens: int) -> bool:
        """Allocate for `num_tokens` more tokens of a resident job; False, with no effect, if blocks are short."""
        table = self._tables[job]
        computed = job.num_computed_tokens + num_tokens
        if computed > table.room_tokens:
            needed = self.blocks_for(computed)
            if needed - len(table.blocks) > len(self._free):
                return False
            self._extend(table, needed)
        if computed >= table.cache_at_tokens:
            self._cache(table, min(computed, job.num_tokens))
        if self._unfinished and computed >= job.num_tokens:
            self._unfinished.pop(job, None)
        return True

    def release(self, job: Job, fate: Fate) -> Fate:
        """Take back a preempted job's blocks; findable contents stay findable until their block is taken."""
        self._take_back(self._tables[job])
        self._unfinished.pop(job, None)
        return Fate.RECOMPUTE

    def evict(self, job: Job) -> Fate:
        """Same as `release`."""
        return self.release(job, Fate.RECOMPUTE)

    def offload(self, job: Job) -> Reason | None:
        """Refused: there is no host to copy to."""
        return Reason.HOST_BLOCKS

    def prefetch(self, job: Job) -> Reason | None:
        """Refused: there is no host to copy from."""
        return Reason.HOST_BLOCKS

    def steady_tokens(self, num_jobs: int) -> int:
        """Tokens by which each of `num_jobs` jobs can grow, one a step, if only these jobs take blocks."""
        return len(self._free) // num_jobs * self.block_size

    @property
    def blocks_coming_free(self) -> int:
        """Blocks that only copies hold; O(blocks pinned)."""
        references = self._references
        return sum(references[block] == pins for block, pins in self._pins.items())

    # ---- called by the engine ----------------------------------------------------------------------

    def misfit(self, job: Job, *, loaded_tokens: int = 0) -> Reason | None:
        """Which memory check a waiting or swapped job would fail now; `loaded_tokens` are copied in before it runs."""
        found = self._find(job)
        crowded = loaded_tokens and self._crowds_out(loaded_tokens, found)
        return Reason.BLOCKS if crowded else self._misfit(job, found)

    def missing_blocks(self, job: Job) -> int:
        """Blocks that must come free before a waiting job passes all memory checks; 0 if it passes now."""
        needed = self._needed(job.num_tokens, self._find(job)) + self._watermark()
        return max(0, needed - len(self._free))

    def cache(self, job: Job, num_tokens: int) -> None:
        """Make the full blocks among a job's first `num_tokens` tokens findable."""
        table = self._tables[job]
        if num_tokens >= table.cache_at_tokens:
            self._cache(table, num_tokens)

    # ---- called by the host tier and the store -----------------------------------------------------

    def key(self, job: Job, index: int) -> BlockKey:
        """The key of a full block of a job's tokens."""
        return self._tables[job].key(index)

    def restore(self, job: Job, num_tokens: int, *, waits: bool) -> Reason | None:
        """Give a job, whose first `num_tokens` tokens come back, the blocks found for it, if all its tokens fit.

        A job that `waits` for copies must also leave room for others.
        """
        if waits and self._crowds_out(num_tokens, self._find(job)):
            return Reason.BLOCKS
        misfit = self._hold_found(job)
        if misfit is None and waits:
            self._unfinished[job] = None
        return misfit

    def extend(self, job: Job, num_tokens: int) -> None:
        """Allocate for a job's first `num_tokens` tokens, which fit; only the found blocks have contents yet."""
        self._extend(self._tables[job], self.blocks_for(num_tokens))

    def resume(self, job: Job, num_tokens: int) -> Reason | None:
        """Allocate for `num_tokens` more tokens of a job that came back, if all its tokens fit."""
        needed = self.blocks_for(job.num_tokens) - len(self._tables[job].blocks)
        if needed + self._watermark() > len(self._free):
            return Reason.BLOCKS
        self.started(job)
        grown = self.grow(job, num_tokens)
        assert grown, "a job whose tokens all fit did not fit"
        return None

    def started(self, job: Job) -> None:
        """A job that has its blocks takes its first step."""
        self._tables[job].started = True
        self._num_started += 1

    def _crowds_out(self, num_tokens: int, found: list[int]) -> bool:
        """Whether a job that comes back with `num_tokens` tokens would take the room of others.

        It cannot be evicted during its copies, so it must leave enough for every prompt in progress and every returned
        job to be computed to its end.
        """
        needed = self._needed(num_tokens, found)
        return needed + self._reserved_blocks() + self._watermark() > len(self._free)

    def _reserved_blocks(self) -> int:
        """Blocks still to be allocated for the known tokens of unfinished jobs."""
        return sum(
            self.blocks_for(job.num_tokens) - len(self._tables[job].blocks) for job in self._unfinished
        )

    def blocks(self, job: Job) -> Sequence[int]:
        """The blocks of a job, in the order of its tokens."""
        return self._tables[job].blocks

    def num_found(self, job: Job) -> int:
        """Leading blocks of a job that others could find; of a job being restored, those that need no copy."""
        return self._tables[job].num_cached

    def pin(self, blocks: Sequence[int]) -> None:
        """Protect held blocks from being taken."""
        for block in blocks:
            self._references[block] += 1
            self._pins[block] += 1

    def unpin(self, blocks: Sequence[int]) -> None:
        """Release pins; blocks without a holder become free."""
        for block in blocks:
            self._pins[block] -= 1
            if not self._pins[block]:
                del self._pins[block]
        self._let_go(blocks)

    def keep(self, job: Job) -> Sequence[int]:
        """Keep, and return, those of a resident's blocks that others can find."""
        table = self._tables[job]
        blocks = table.blocks[: table.num_cached]
        for block in blocks:
            self._references[block] += 1
        self._kept.update(blocks)
        return blocks

    def let_go(self, blocks: Sequence[int]) -> None:
        """Stop keeping blocks; those without a holder become free, as if freed just now."""
        self._kept.subtract(blocks)
        self._kept += Counter()
        self._let_go(blocks)

    # ---- blocks ------------------------------------------------------------------------------------

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def _find(self, job: Job) -> list[int]:
        found: list[int] = []
        if not self.prefix_caching:
            return found
        table, holders = self._tables[job], self._holders
        for index in range((job.num_tokens - 1) // self.block_size):
            holder = holders.get(table.key(index))
            if holder is None:
                break
            found.append(next(iter(holder)))
        return found

    def _misfit(self, job: Job, found: list[int]) -> Reason | None:
        """All known tokens must fit; found blocks in the free line count as taken from it."""
        needed = self._needed(job.num_tokens, found)
        if needed > len(self._free):
            return Reason.ISL
        return Reason.WATERMARK if needed + self._watermark() > len(self._free) else None

    def _watermark(self) -> int:
        """Blocks that an admission leaves free beside running jobs; a job that came back and has not run does not
        count.
        """
        return self.watermark_blocks if self._num_started else 0

    def _needed(self, num_tokens: int, found: list[int]) -> int:
        """Free blocks needed to hold `num_tokens` tokens, counting found blocks in the free line."""
        needed = self.blocks_for(num_tokens) - len(found)
        return needed + sum(not self._references[block] for block in found)

    def _extend(self, table: Table, num_blocks: int) -> None:
        """Give a job fresh blocks from the front of the line until it has `num_blocks`."""
        free, references, key_of = self._free, self._references, self._key_of
        for _ in range(num_blocks - len(table.blocks)):
            block, _ = free.popitem(last=False)
            if key_of[block] is not None:
                self._evict(block)
            references[block] = 1
            table.blocks.append(block)
        table.room_tokens = len(table.blocks) * self.block_size

    def _cache(self, table: Table, num_tokens: int) -> None:
        for index in range(table.num_cached, num_tokens // self.block_size):
            block, key = table.blocks[index], table.key(index)
            self._key_of[block] = key
            self._holders.setdefault(key, {})[block] = None
            table.num_cached = index + 1
        table.cache_at_tokens = (table.num_cached + 1) * self.block_size

    def _evict(self, block: int) -> None:
        key = self._key_of[block]
        assert key is not None
        self._key_of[block] = None
        holders = self._holders[key]
        del holders[block]
        if not holders:
            del self._holders[key]

    def _take_back(self, table: Table) -> None:
        if not table.blocks:
            return
        self._let_go(table.blocks)
        table.blocks = []
        table.num_cached = table.room_tokens = 0
        table.cache_at_tokens = self._cache_from_tokens
        self._num_started -= table.started
        table.started = False

    def _let_go(self, blocks: Sequence[int]) -> None:
        """Remove one holder of each block; blocks without holders join the line, the last of them first."""
        free, references, key_of = self._free, self._references, self._key_of
        for block in reversed(blocks):
            references[block] -= 1
            if not references[block]:
                free[block] = None
                if key_of[block] is None:
                    free.move_to_end(block, last=False)

    @property
    def num_pins(self) -> int:
        """Number of pins; a block counts once for each copy."""
        return self._pins.total()

    def check(self, residents: Sequence[Job]) -> None:
        """Assert that every block is free or held, counted once for each holder or copy; O(blocks)."""
        held = [0] * self.num_blocks
        for block, copies in (self._pins + self._kept).items():
            held[block] = copies
        for job, table in self._tables.items():
            assert bool(table.blocks) <= (job in residents), f"{job!r} holds blocks and is not resident"
            for block in table.blocks:
                held[block] += 1
        assert self._num_started == sum(table.started for table in self._tables.values())
        assert held == self._references
        assert len(self._free) == held.count(0)
        assert not any(map(held.__getitem__, self._free))
        for key, holders in self._holders.items():
            assert holders
            for block in holders:
                assert self._key_of[block] == key
        for job in residents:
            assert len(self._tables[job].blocks) * self.block_size >= job.num_computed_tokens
