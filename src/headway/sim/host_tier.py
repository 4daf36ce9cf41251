"""KV that leaves the device for host memory and comes back, beside a pool of device blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from headway.core.host_pool import HostPool
from headway.core.job import Job, JobState
from headway.core.plan import Fate, Reason
from headway.sim.kv_pool import KvPool


class Direction(Enum):
    """Which way a copy goes; each way has a copy engine of its own."""

    TO_HOST = "to host"
    TO_DEVICE = "to device"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Copy:
    """Blocks of one job under way, pinned on the device until it is done.

    Once it is, the job's first `num_tokens` tokens have their KV where it went.
    """

    job: Job
    direction: Direction
    blocks: Sequence[int]
    num_tokens: int


@dataclass(slots=True)
class _HostSide:
    """What the host has of one job.

    `saved_tokens` are covered by a complete copy, true as long as the job has computed no more. `outgoing` is
    the copy to the host under way, of which a job has one at a time. `leaving` are the pinned blocks of a
    swapped job still to be copied. `wanted` is False when the copy is of no use any more, but the copies
    under way have to end before its room is free.
    """

    saved_tokens: int = 0
    copies: int = 0
    outgoing: Copy | None = None
    leaving: Sequence[int] | None = None
    wanted: bool = True


class HostTier:
    """The KV side of an engine that can swap: `pool` on the device, `host` beside it.

    A swapped job's blocks come free when their copy is done; those the host has already, at once. A copy
    starts when no step that computes into its blocks is in flight (`in_flight` tells). Whole blocks never
    change, so of a job that ran after its copy only the blocks from the last partial one on are copied again.
    A restored job keeps its host copy until its first step has run: putting it back copies nothing. An
    offloaded one keeps it to its end. Blocks found on the device are not copied back. `started` are the
    copies to be carried out by whoever keeps time, who calls `finish` for each, in order within a direction;
    with `serial` they are done as they start. Costs: O(blocks of the jobs named).
    """

    def __init__(
        self,
        pool: KvPool,
        host_blocks: int,
        *,
        restore_blocks: int,
        serial: bool,
        in_flight: Callable[[Job], bool],
    ) -> None:
        self.pool = pool
        self.host = HostPool(host_blocks)
        self.started: list[Copy] = []
        self.restoring: dict[Job, Copy] = {}
        self._restore_blocks = restore_blocks
        self._serial = serial
        self._in_flight = in_flight
        self._sides: dict[Job, _HostSide] = {}
        self._returned: dict[Job, int] = {}
        self._under_way: dict[Copy, None] = {}

    @property
    def busy(self) -> bool:
        """Whether copies are under way."""
        return bool(self._under_way)

    @property
    def returned(self) -> bool:
        """Whether there are restored jobs that have not run since."""
        return bool(self._returned)

    # ---- what core.fill asks: as the pool, and the host --------------------------------------------

    @property
    def free_blocks(self) -> int:
        """Device blocks that can be allocated now."""
        return self.pool.free_blocks

    @property
    def blocks_coming_free(self) -> int:
        """Device blocks that nothing but copies holds."""
        return self.pool.blocks_coming_free

    def ready(self, job: Job) -> Reason | None:
        """Why a waiting or swapped job is passed over: a swapped one until all of it is on the host."""
        not_ready = self.pool.ready(job)
        if not_ready is not None or job.state is not JobState.SWAPPED:
            return not_ready
        if self.uncopied_blocks(job):
            return Reason.REMOTE_KV
        held = sum(self._returned.values())
        within = held + self.pool.blocks_for(job.num_tokens) <= self._restore_blocks
        return None if within or not held else Reason.RESTORES

    def cached_tokens(self, job: Job) -> int:
        """Leading tokens found in the pool."""
        return self.pool.cached_tokens(job)

    def grow(self, job: Job, num_tokens: int) -> bool:
        """As the pool."""
        return self.pool.grow(job, num_tokens)

    def start(self, job: Job, num_tokens: int) -> Reason | None:
        """Allocate for a waiting job as the pool, for a swapped one all its blocks; its copy back starts."""
        if job.state is not JobState.SWAPPED:
            return self.pool.start(job, num_tokens)
        misfit = self.prefetch(job)
        if misfit is None and job not in self.restoring:
            # All of it is there and it runs in this step: it is not idle, and its new blocks can be found.
            self._returned[job] = 0
            found = self.pool.num_found(job) * self.pool.block_size
            self.pool.cache(job, max(found, job.num_computed_tokens) + num_tokens)
        return misfit

    def prefetch(self, job: Job) -> Reason | None:
        """Allocate all blocks of a swapped job and start to copy back those not found."""
        misfit = self.pool.restore(job)
        if misfit is not None:
            return misfit
        blocks = self.pool.blocks(job)
        self._returned[job] = len(blocks)
        missing = blocks[self.pool.num_found(job) : self.pool.blocks_for(job.num_computed_tokens)]
        if missing:
            self.pool.pin(missing)
            copy = Copy(
                job=job,
                direction=Direction.TO_DEVICE,
                blocks=tuple(missing),
                num_tokens=job.num_computed_tokens,
            )
            self.restoring[job] = copy
            self._start(copy)
        return None

    def offload(self, job: Job) -> Reason | None:
        """Start to copy what the host lacks of a resident; not while a step computes or a copy moves it."""
        if job in self.restoring:
            return Reason.REMOTE_KV
        if self._in_flight(job):
            return Reason.IN_FLIGHT
        missing = self._missing(job)
        if not missing:
            return None
        side = self._sides.get(job)
        if side is not None and side.outgoing is not None:
            return Reason.REMOTE_KV
        if not self._reserve(job):
            return Reason.HOST_BLOCKS
        self.pool.pin(missing)
        self._copy_out(job, missing)
        return None

    def release(self, job: Job, fate: Fate) -> Fate:
        """Take a job's blocks away: dropped at once, swapped when their copy is done; a full host drops them."""
        if fate is Fate.SWAP and self._reserve(job):
            missing = self._missing(job)
            self.pool.pin(missing)
            self._sides[job].leaving = missing
            self._leave_device(job)
            if not self._in_flight(job):
                self.advance(job)
            return Fate.SWAP
        self._leave_device(job)
        self._discard(job)
        return Fate.RECOMPUTE

    def evict(self, job: Job) -> Fate:
        """Take a victim's blocks away without waiting for a copy: put back if the host has all, else dropped."""
        return self.release(job, Fate.RECOMPUTE if self.uncopied_blocks(job) else Fate.SWAP)

    # ---- what the engine asks ----------------------------------------------------------------------

    def uncopied_blocks(self, job: Job) -> int:
        """Blocks of a job of which the host has no complete and true copy yet; 0: it can leave at once."""
        side = self._sides.get(job)
        saved = side.saved_tokens if side is not None and side.leaving is None else 0
        return self.pool.blocks_for(job.num_computed_tokens) - self._kept_blocks(job, saved)

    def advance(self, job: Job) -> None:
        """Start the copy of a swapped job's last blocks, once nothing computes into or copies them."""
        side = self._sides.get(job)
        if side is None or side.leaving is None or side.outgoing is not None:
            return
        blocks, side.leaving = side.leaving, None
        if blocks:
            self._copy_out(job, blocks)
        else:
            side.saved_tokens = job.num_computed_tokens

    def ran(self, job: Job) -> bool:
        """Forget the host copy of a restored job whose first step has run; True if it was one."""
        if self._returned.pop(job, None) is None:
            return False
        self._discard(job)
        return True

    def finish(self, copy: Copy) -> None:
        """A copy is done: its blocks on the device are let go, and what waited for it goes on."""
        job = copy.job
        side = self._sides[job]
        del self._under_way[copy]
        side.copies -= 1
        self.pool.unpin(copy.blocks)
        if copy.direction is Direction.TO_DEVICE:
            if self.restoring.get(job) is copy:
                del self.restoring[job]
                self.pool.cache(job, copy.num_tokens)
        elif side.outgoing is copy:
            side.outgoing = None
            side.saved_tokens = copy.num_tokens
            self.host.commit(job, self.pool.blocks_for(copy.num_tokens))
        self._settle(job, side)
        self.advance(job)

    def forget(self, job: Job) -> None:
        """Drop a job that has ended; copies of it that are under way end by themselves."""
        self._leave_device(job)
        self.pool.forget(job)
        self._discard(job)

    # ---- inside ------------------------------------------------------------------------------------

    def _kept_blocks(self, job: Job, saved_tokens: int) -> int:
        """How many of a job's blocks a copy of its first `saved_tokens` tokens still shows truly."""
        if saved_tokens == job.num_computed_tokens:
            return self.pool.blocks_for(saved_tokens)
        return saved_tokens // self.pool.block_size

    def _missing(self, job: Job) -> Sequence[int]:
        """The blocks of a resident that neither a complete copy nor one under way shows truly."""
        side = self._sides.get(job)
        covered = 0
        if side is not None and side.wanted:
            covered = side.saved_tokens if side.outgoing is None else side.outgoing.num_tokens
        blocks = self.pool.blocks(job)
        return blocks[self._kept_blocks(job, covered) : self.pool.blocks_for(job.num_computed_tokens)]

    def _reserve(self, job: Job) -> bool:
        """Room on the host for all of a job; what it has there is kept as far as it is true."""
        if not self.host.reserve(job, self.pool.blocks_for(job.num_computed_tokens)):
            return False
        side = self._sides.setdefault(job, _HostSide())
        side.wanted = True
        self.host.spoil(job, self._kept_blocks(job, side.saved_tokens))
        return True

    def _leave_device(self, job: Job) -> None:
        """Take the blocks a job itself holds; those being copied stay pinned."""
        self.restoring.pop(job, None)
        self._returned.pop(job, None)
        self.pool.release(job, Fate.RECOMPUTE)

    def _discard(self, job: Job) -> None:
        """The host copy of a job, if there is one, is of no use any more."""
        side = self._sides.get(job)
        if side is None:
            return
        side.wanted = False
        side.saved_tokens = 0
        side.outgoing = None
        self.host.spoil(job, 0)
        if side.leaving is not None:
            self.pool.unpin(side.leaving)
            side.leaving = None
        self._settle(job, side)

    def _settle(self, job: Job, side: _HostSide) -> None:
        if not side.wanted and not side.copies:
            self.host.drop(job)
            del self._sides[job]

    def _copy_out(self, job: Job, blocks: Sequence[int]) -> None:
        copy = Copy(
            job=job,
            direction=Direction.TO_HOST,
            blocks=tuple(blocks),
            num_tokens=job.num_computed_tokens,
        )
        self._sides[job].outgoing = copy
        job.swapped_blocks += len(blocks)
        self._start(copy)

    def _start(self, copy: Copy) -> None:
        self._sides[copy.job].copies += 1
        self._under_way[copy] = None
        self.started.append(copy)
        if self._serial:
            self.finish(copy)

    # ---- checks ------------------------------------------------------------------------------------

    def check(self, residents: Sequence[Job]) -> None:
        """Assert that blocks are conserved on both sides and that nothing is kept for nobody."""
        self.pool.check(residents)
        self.host.check()
        copied = sum(len(copy.blocks) for copy in self._under_way)
        leaving = sum(len(side.leaving or ()) for side in self._sides.values())
        assert self.pool.num_pins == copied + leaving
        for job, side in self._sides.items():
            assert side.wanted or side.copies, f"host blocks are kept for {job!r}, which has no use for them"
            assert side.copies == sum(copy.job is job for copy in self._under_way)
            needed = self.pool.blocks_for(job.num_computed_tokens)
            assert job.state is not JobState.SWAPPED or self.host.held(job) >= needed
        assert set(self.restoring) <= set(self._returned) <= set(residents)
        held = sum(self._returned.values())
        assert held <= self._restore_blocks or sum(map(bool, self._returned.values())) == 1
