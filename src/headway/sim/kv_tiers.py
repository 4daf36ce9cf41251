"""KV memory beside a simulated engine's device: host memory for swaps, or the store of a KV connector."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice, takewhile

from headway.core.host_copies import Copy, Direction, HostCopies
from headway.core.job import Job, JobState
from headway.core.plan import Fate, Reason
from headway.sim.kv_pool import BlockKey, KvPool


class _BesideDevice:
    """Answers what `core.fill` and the engine ask about KV memory, from `pool`, while nothing leaves the device."""

    def __init__(self, pool: KvPool) -> None:
        self.pool = pool

    @property
    def free_blocks(self) -> int:
        """Device blocks that can be allocated now."""
        return self.pool.free_blocks

    @property
    def blocks_coming_free(self) -> int:
        """Device blocks that only copies hold."""
        return self.pool.blocks_coming_free

    def ready(self, job: Job) -> Reason | None:
        """Why a waiting job is skipped."""
        return self.pool.ready(job)

    def grow(self, job: Job, num_tokens: int) -> bool:
        """Allocate for `num_tokens` more tokens of a resident job; False if blocks are short."""
        return self.pool.grow(job, num_tokens)


class HostTier(_BesideDevice):
    """KV memory of an engine with swaps: `pool` on the device, `copies` to the host and back."""

    def __init__(
        self,
        pool: KvPool,
        host_blocks: int,
        *,
        restore_blocks: int,
        serial: bool,
        in_flight: Callable[[Job], bool],
    ) -> None:
        super().__init__(pool)
        self.copies = HostCopies(
            pool, host_blocks, restore_blocks=restore_blocks, serial=serial, in_flight=in_flight
        )

    @property
    def restoring(self) -> Collection[Job]:
        """Residents whose KV is on its way back."""
        return self.copies.restoring

    @property
    def returned(self) -> Collection[Job]:
        """Residents that came back and have had no step since."""
        return self.copies.returned

    @property
    def busy(self) -> bool:
        """Whether copies are under way, or a host copy is needed until a step has run."""
        return self.copies.busy or self.copies.awaited

    def ready(self, job: Job) -> Reason | None:
        """Why a waiting or swapped job is skipped; a swapped one until all of it is on the host."""
        not_ready = self.pool.ready(job)
        if not_ready is not None or job.state is not JobState.SWAPPED:
            return not_ready
        return self.copies.ready(job)

    def misfit(self, job: Job) -> Reason | None:
        """Which memory check a waiting or swapped job would fail now."""
        waits = job.state is JobState.SWAPPED and self._waits(job)
        return self.pool.misfit(job, loaded_tokens=job.num_computed_tokens if waits else 0)

    def _waits(self, job: Job) -> bool:
        """Whether a swapped job comes back by copies beside the steps, and not at once."""
        return self.pool.cached_tokens(job) < job.num_computed_tokens and not self.copies.serial

    def cached_tokens(self, job: Job) -> int:
        """Leading tokens found in the pool."""
        return self.pool.cached_tokens(job)

    def start(self, job: Job, num_tokens: int) -> Reason | None:
        """Allocate for a waiting job as the pool does; a swapped job comes back, and runs if all of its KV is there."""
        if job.state is not JobState.SWAPPED:
            return self.pool.start(job, num_tokens)
        return self._bring_back(job, num_tokens)

    def prefetch(self, job: Job) -> Reason | None:
        """Bring a swapped job back without a place in the batch."""
        return self._bring_back(job, 0)

    def _bring_back(self, job: Job, num_tokens: int) -> Reason | None:
        """Allocate for a swapped job and start its copies; add `num_tokens` if there are no copies to wait for."""
        saved = job.num_computed_tokens
        waits = self._waits(job)
        misfit = self.pool.restore(job, saved, waits=waits)
        if misfit is not None:
            return misfit
        found = self.pool.num_found(job)
        known = max(found * self.pool.block_size, saved)
        self.pool.extend(job, known if waits else known + num_tokens)
        self.copies.bring_back(job, self.pool.blocks(job), found)
        if num_tokens and not waits:
            self.copies.runs(job)
            self.pool.started(job)
            self.pool.cache(job, known + num_tokens)
        return None

    def resume(self, job: Job, num_tokens: int) -> Reason | None:
        """Allocate for the first step of a job that came back."""
        misfit = self.pool.resume(job, num_tokens)
        if misfit is None:
            self.copies.runs(job)
        return misfit

    def offload(self, job: Job) -> Reason | None:
        """Start copying what the host lacks of a resident."""
        return self.copies.offload(job)

    def release(self, job: Job, fate: Fate) -> Fate:
        """Take a job's blocks away: at once if dropped, after the copy if swapped; a full host forces a drop."""
        fate = self.copies.leave(job, fate)
        self.pool.release(job, fate)
        self.copies.advance(job)
        return fate

    def evict(self, job: Job) -> Fate:
        """Take a victim's blocks away without waiting for a copy: swapped if the host has everything, else dropped."""
        return self.release(job, self.copies.shortage_fate(job))

    def forget(self, job: Job) -> None:
        """Remove an ended job."""
        self.pool.release(job, Fate.RECOMPUTE)
        self.copies.forget(job)
        self.pool.forget(job)

    def take_copies(self) -> list[Copy]:
        """The copies that started since the last call."""
        copies, self.copies.started = self.copies.started, []
        return copies

    def finish(self, copy: Copy) -> None:
        """A copy is done."""
        self.copies.finish(copy)

    def check(self, residents: Sequence[Job]) -> None:
        """Assert that blocks are conserved on both sides and that nothing is kept for ended jobs."""
        self.pool.check(residents)
        assert self.pool.num_pins == self.copies.num_pinned
        self.copies.check(residents)


class BlockStore:
    """The KV blocks in a store, by contents; the least recently used make room for new ones.

    A block counts from its reservation, and can be found once stored. Blocks being loaded stay. Costs: O(blocks named),
    and O(blocks being loaded) more if room is short.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._held: OrderedDict[BlockKey, None] = OrderedDict()
        self._coming: set[BlockKey] = set()
        self._loading: Counter[BlockKey] = Counter()

    def holds(self, key: BlockKey) -> bool:
        """Whether a block can be loaded."""
        return key in self._held

    def reserve(self, keys: Sequence[BlockKey]) -> list[BlockKey]:
        """Use a sequence's blocks and make room for those that the store lacks; return the blocks to store.

        The sequence's own blocks make no room: if there is too little, its last blocks are left out.
        """
        self._use(keys)
        lacking = [key for key in dict.fromkeys(keys) if not (key in self._held or key in self._coming)]
        self._make_room(len(lacking), own=set(keys))
        wanted = lacking[: self.num_blocks - len(self._held) - len(self._coming)]
        self._coming.update(wanted)
        return wanted

    def stored(self, keys: Sequence[BlockKey]) -> None:
        """Reserved blocks have arrived."""
        self._coming.difference_update(keys)
        self._held.update(dict.fromkeys(reversed(keys)))

    def load(self, keys: Sequence[BlockKey]) -> None:
        """A load of held blocks begins: they count as used, and stay until it ends."""
        self._use(keys)
        self._loading.update(keys)

    def loaded(self, keys: Sequence[BlockKey]) -> None:
        """A load has ended."""
        self._loading.subtract(keys)
        for key in keys:
            if not self._loading[key]:
                del self._loading[key]

    def _use(self, keys: Sequence[BlockKey]) -> None:
        """Mark blocks as used. The last block of a sequence is evicted first: the others are useful without it."""
        for key in reversed(keys):
            if key in self._held:
                self._held.move_to_end(key)

    def _make_room(self, num_blocks: int, own: set[BlockKey]) -> None:
        lacking = num_blocks - (self.num_blocks - len(self._held) - len(self._coming))
        if lacking <= 0:
            return
        oldest = takewhile(lambda key: key not in own, self._held)
        for key in list(islice((key for key in oldest if key not in self._loading), lacking)):
            del self._held[key]

    def check(self) -> None:
        """Assert that no block counts twice, that all fit, and that loading blocks are present."""
        assert not self._coming & self._held.keys()
        assert len(self._held) + len(self._coming) <= self.num_blocks
        assert self._loading.keys() <= self._held.keys()


class KvStore(_BesideDevice):
    """Answers `core.fill` from `pool` on the device and a connector's store.

    Full blocks of a job that ends or is preempted go to the store beside the steps; on the device they can be found,
    but are not reused until the store has them. A job of which the store holds more than the device starts with a load:
    it is resident and `restoring`, holds its blocks, and gets no tokens until the load has ended (vLLM's
    WAITING_FOR_REMOTE_KVS; here it takes a worker slot too). As in vLLM it leaves room for every prompt in progress,
    since it cannot be evicted, and others find its blocks once they are loaded.

    In the store's copies, `host_blocks` are the keys of their blocks.
    """

    def __init__(self, pool: KvPool, num_blocks: int) -> None:
        super().__init__(pool)
        self.store = BlockStore(num_blocks)
        self._started: list[Copy] = []
        self._restoring: dict[Job, Copy] = {}
        self._returned: dict[Job, None] = {}
        self._under_way: dict[Copy, None] = {}
        self._looked_up: tuple[Job | None, int, list[BlockKey]] = (None, 0, [])

    @property
    def restoring(self) -> Collection[Job]:
        """Residents whose KV is being loaded."""
        return self._restoring.keys()

    @property
    def returned(self) -> Collection[Job]:
        """Residents that started with a load and have had no step since."""
        return self._returned.keys()

    @property
    def busy(self) -> bool:
        """Whether stores or loads are under way."""
        return bool(self._under_way)

    def finds(self, job: Job, index: int) -> bool:
        """Whether a block of a waiting job's tokens, by its index, is on the device or in the store. O(1)."""
        return self.pool.finds(job, index) or self.store.holds(self.pool.key(job, index))

    # ---- called by core.fill -----------------------------------------------------------------------

    def misfit(self, job: Job) -> Reason | None:
        """Which memory check a waiting job would fail now."""
        known, keys = self._look_up(job)
        return self.pool.misfit(job, loaded_tokens=known if keys else 0)

    def cached_tokens(self, job: Job) -> int:
        """Leading tokens found on the device, and after them in the store; remembered for `start`."""
        self._looked_up = (job, *self._look_up(job))
        return self._looked_up[1]

    def _look_up(self, job: Job) -> tuple[int, list[BlockKey]]:
        """The found tokens, and the blocks that the store holds beyond the device."""
        found, size = self.pool.cached_tokens(job), self.pool.block_size
        beyond = self._keys(job, range(found // size, (job.num_tokens - 1) // size))
        keys = list(takewhile(self.store.holds, beyond))
        return found + len(keys) * size, keys

    def start(self, job: Job, num_tokens: int) -> Reason | None:
        """Allocate for a waiting job as the pool does, or for what the store holds of it, and start the load."""
        looked_up, known, keys = self._looked_up
        if looked_up is not job:
            known, keys = self._look_up(job)
        self._looked_up = (None, 0, [])
        if not keys:
            return self.pool.start(job, num_tokens)
        misfit = self.pool.restore(job, known, waits=True)
        if misfit is not None:
            return misfit
        found = self.pool.num_found(job)
        self.pool.extend(job, known)
        self.store.load(keys)
        self._returned[job] = None
        self._restoring[job] = self._transfer(
            job, Direction.TO_DEVICE, self.pool.blocks(job)[found:], keys, known
        )
        return None

    def resume(self, job: Job, num_tokens: int) -> Reason | None:
        """Allocate for the first step of a job that started with a load."""
        misfit = self.pool.resume(job, num_tokens)
        if misfit is None:
            del self._returned[job]
        return misfit

    def release(self, job: Job, fate: Fate) -> Fate:
        """Take a job's blocks away, once the store has those that it lacked."""
        self._keep(job)
        return self.pool.release(job, fate)

    def evict(self, job: Job) -> Fate:
        """Same as `release`."""
        return self.release(job, Fate.RECOMPUTE)

    def offload(self, job: Job) -> Reason | None:
        """Refused: the policy has no host memory."""
        return self.pool.offload(job)

    def prefetch(self, job: Job) -> Reason | None:
        """Refused: the policy has no host memory."""
        return self.pool.prefetch(job)

    # ---- called by the engine ----------------------------------------------------------------------

    def forget(self, job: Job) -> None:
        """Remove an ended job, once the store has what it lacked of it."""
        self._keep(job)
        self.pool.forget(job)

    def take_copies(self) -> list[Copy]:
        """The stores and loads that started since the last call."""
        copies, self._started = self._started, []
        return copies

    def finish(self, copy: Copy) -> None:
        """A store or a load has ended."""
        del self._under_way[copy]
        self.pool.unpin(copy.blocks)
        if copy.direction is Direction.TO_HOST:
            self.store.stored(copy.host_blocks)
            return
        self.store.loaded(copy.host_blocks)
        if self._restoring.get(copy.job) is copy:
            del self._restoring[copy.job]
            self.pool.cache(copy.job, copy.num_tokens)

    def _keep(self, job: Job) -> None:
        """Store the missing blocks of a job that gives up its blocks; none of a job that is still loading."""
        self._returned.pop(job, None)
        if self._restoring.pop(job, None) is not None:
            return
        blocks = self.pool.blocks(job)[: self.pool.num_found(job)]
        block_of = dict(zip(self._keys(job, range(len(blocks))), blocks, strict=True))
        keys = self.store.reserve(list(block_of))
        if keys:
            job.swapped_blocks += len(keys)
            lacking = [block_of[key] for key in keys]
            self._transfer(job, Direction.TO_HOST, lacking, keys, len(blocks) * self.pool.block_size)

    def _keys(self, job: Job, indices: Iterable[int]) -> Iterable[BlockKey]:
        return (self.pool.key(job, index) for index in indices)

    def _transfer(
        self, job: Job, direction: Direction, blocks: Sequence[int], keys: Sequence[BlockKey], num_tokens: int
    ) -> Copy:
        copy = Copy(
            job=job, direction=direction, blocks=tuple(blocks), host_blocks=tuple(keys), num_tokens=num_tokens
        )
        self.pool.pin(copy.blocks)
        self._under_way[copy] = None
        self._started.append(copy)
        return copy

    def check(self, residents: Sequence[Job]) -> None:
        """Assert that blocks are conserved on both sides, and that only residents load."""
        self.pool.check(residents)
        self.store.check()
        assert self.pool.num_pins == sum(len(copy.blocks) for copy in self._under_way)
        assert set(self._restoring.values()) <= self._under_way.keys()
        assert self._restoring.keys() <= self._returned.keys() <= set(residents)
