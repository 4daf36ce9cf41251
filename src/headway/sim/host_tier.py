"""The KV memory of a simulated engine that can swap: a pool of device blocks, and the host beside it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from headway.core.host_copies import Copy, HostCopies
from headway.core.job import Job, JobState
from headway.core.plan import Fate, Reason
from headway.sim.kv_pool import KvPool


class HostTier:
    """What `core.fill` asks, of `pool` on the device and `copies` to the host and back."""

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
        """Whether copies are under way, or wait for a step to be of no use any more."""
        return self.copies.busy or self.copies.awaited

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

    def grow(self, job: Job, num_tokens: int) -> bool:
        """As the pool."""
        return self.pool.grow(job, num_tokens)

    def start(self, job: Job, num_tokens: int) -> Reason | None:
        """Allocate for a waiting job as the pool; a swapped one comes back, and runs if all of it is there."""
        if job.state is not JobState.SWAPPED:
            return self.pool.start(job, num_tokens)
        return self._bring_back(job, num_tokens)

    def prefetch(self, job: Job) -> Reason | None:
        """Bring a swapped job back without a place in the batch."""
        return self._bring_back(job, 0)

    def _bring_back(self, job: Job, num_tokens: int) -> Reason | None:
        """Allocate for a swapped job and start its copies; with `num_tokens` more if there are none to wait for."""
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
        """Start to copy what the host lacks of a resident."""
        return self.copies.offload(job)

    def release(self, job: Job, fate: Fate) -> Fate:
        """Take a job's blocks away: dropped at once, swapped when their copy is done; a full host drops them."""
        fate = self.copies.leave(job, fate)
        self.pool.release(job, fate)
        self.copies.advance(job)
        return fate

    def evict(self, job: Job) -> Fate:
        """Take a victim's blocks away without waiting for a copy: put back if the host has all, else dropped."""
        return self.release(job, self.copies.shortage_fate(job))

    def forget(self, job: Job) -> None:
        """Drop a job that has ended."""
        self.pool.release(job, Fate.RECOMPUTE)
        self.copies.forget(job)
        self.pool.forget(job)

    def take_copies(self) -> list[Copy]:
        """The copies that have started since this was last asked."""
        copies, self.copies.started = self.copies.started, []
        return copies

    def finish(self, copy: Copy) -> None:
        """A copy is done."""
        self.copies.finish(copy)

    def check(self, residents: Sequence[Job]) -> None:
        """Assert that blocks are conserved on both sides and that nothing is kept for nobody."""
        self.pool.check(residents)
        assert self.pool.num_pins == self.copies.num_pinned
        self.copies.check(residents)
