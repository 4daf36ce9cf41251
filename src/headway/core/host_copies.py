"""Decides which KV blocks are copied to host memory and back, and when."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from headway.core.job import Job, JobState
from headway.core.plan import Fate, Reason


class HostPool:
    """Assigns host blocks to jobs; simulator and connector use the same accounting.

    A job's n-th host block holds the n-th block of its sequence. At most `num_blocks` are reserved: a job that finds no
    room is recomputed instead. Costs: `reserve` and `drop` O(blocks moved), the rest O(1), `check` O(blocks).
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks))
        self._held: dict[Job, list[int]] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks that are not reserved."""
        return len(self._free)

    def blocks(self, job: Job) -> Sequence[int]:
        """The blocks reserved for a job, in the order of its tokens."""
        return self._held.get(job, ())

    def held(self, job: Job) -> int:
        """How many blocks are reserved for a job."""
        return len(self.blocks(job))

    def reserve(self, job: Job, num_blocks: int) -> bool:
        """Reserve more blocks until a job has at least `num_blocks`; False, with no change, if the host is full."""
        more = num_blocks - self.held(job)
        if more > len(self._free):
            return False
        if more > 0:
            self._held.setdefault(job, []).extend(self._free.pop() for _ in range(more))
        return True

    def drop(self, job: Job) -> None:
        """Release a job's blocks, if it has any. No copy may be reading or writing them."""
        self._free.extend(reversed(self._held.pop(job, [])))

    def check(self) -> None:
        """Assert that every block is free or reserved once."""
        reserved = [block for blocks in self._held.values() for block in blocks]
        assert sorted(reserved + self._free) == list(range(self.num_blocks))


DEFAULT_RESTORE_SHARE = 0.5
"""Half of the KV blocks may hold jobs that are not running yet; the other half stays for running ones."""


class Direction(Enum):
    """The direction of a copy; each has a copy engine of its own."""

    TO_HOST = "to host"
    TO_DEVICE = "to device"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Copy:
    """Blocks of one job under way, each with its host block, pinned on the device until the copy is done.

    Afterwards the KV of the job's first `num_tokens` tokens is at the destination.
    """

    job: Job
    direction: Direction
    blocks: Sequence[int]
    host_blocks: Sequence[int]
    num_tokens: int


class DeviceBlocks(Protocol):
    """The device's KV memory as copies need it, simulated or vLLM's."""

    @property
    def block_size(self) -> int:
        """Tokens a block holds."""
        ...

    def blocks(self, job: Job) -> Sequence[int]:
        """The blocks a job holds, in the order of its tokens."""
        ...

    def pin(self, blocks: Sequence[int]) -> None:
        """Protect held blocks from being taken."""
        ...

    def unpin(self, blocks: Sequence[int]) -> None:
        """Release pins; blocks without a holder become free."""
        ...


@dataclass(slots=True)
class _HostSide:
    """What the host has of one job.

    `saved_tokens` are covered by a complete copy, which is valid while the job has computed no more. `outgoing` is the
    running copy to the host, at most one a job. `leaving` are the pinned blocks of a swapped job still to be copied.
    `wanted` is False when the copy is useless, but running copies must end before its room is free.
    """

    saved_tokens: int = 0
    copies: int = 0
    outgoing: Copy | None = None
    leaving: Sequence[int] | None = None
    wanted: bool = True


class HostCopies:
    """Decides what is copied between device and host for an engine that can swap.

    A swapped job's blocks come free when their copy is done; those the host has already, at once. A copy
    starts when no step that computes into its blocks is in flight (`in_flight` tells). Whole blocks never
    change, so of a job that ran after its copy only the blocks from the last partial one on are copied again.
    A restored job keeps its host copy until its first step has run: putting it back copies nothing. An
    offloaded one keeps it to its end. Blocks found on the device are not copied back.

    `started` are the copies to be carried out by the owner of the clock, which takes them from the list and calls
    `finish` for each, in order within a direction. With `serial` they are done as they start: the owner of the clock
    lets the step they were decided with wait for them. Costs: O(blocks of the jobs named).
    """

    def __init__(
        self,
        device: DeviceBlocks,
        host_blocks: int,
        *,
        restore_blocks: int,
        serial: bool,
        in_flight: Callable[[Job], bool],
    ) -> None:
        self.host = HostPool(host_blocks)
        self.serial = serial
        self.started: list[Copy] = []
        self.restoring: dict[Job, Copy] = {}
        self._device = device
        self._restore_blocks = restore_blocks
        self._in_flight = in_flight
        self._sides: dict[Job, _HostSide] = {}
        self._idle: dict[Job, int] = {}
        self._running: set[Job] = set()
        self._under_way: dict[Copy, None] = {}

    # ---- questions ---------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether copies are under way."""
        return bool(self._under_way)

    @property
    def returned(self) -> Collection[Job]:
        """Residents that came back, or are coming back, and have had no step since."""
        return self._idle.keys()

    @property
    def awaited(self) -> bool:
        """Whether a job that came back has its first step in flight, after which its host copy is useless."""
        return bool(self._running)

    def ready(self, job: Job) -> Reason | None:
        """Why a swapped job cannot come back yet: it is not completely on the host, or too many are coming back
        already.
        """
        if self.uncopied_blocks(job):
            return Reason.REMOTE_KV
        held = sum(self._idle.values())
        within = held + self._blocks_for(job.num_tokens) <= self._restore_blocks
        return None if within or not held else Reason.RESTORES

    def uncopied_blocks(self, job: Job) -> int:
        """Blocks of a job of which the host has no complete and valid copy yet; 0: it can leave at once."""
        side = self._sides.get(job)
        saved = side.saved_tokens if side is not None and side.leaving is None else 0
        return self._blocks_for(job.num_computed_tokens) - self._kept_blocks(job, saved)

    def unsent_blocks(self, job: Job) -> int:
        """Blocks of a resident in neither a complete and valid copy nor a running one."""
        return self._blocks_for(job.num_computed_tokens) - self._sent_blocks(job)

    def shortage_fate(self, job: Job) -> Fate:
        """The fate of a job whose blocks are needed at once: a swap only if the host has all of it already."""
        return Fate.RECOMPUTE if self.uncopied_blocks(job) else Fate.SWAP

    # ---- a job leaves the device -------------------------------------------------------------------

    def offload(self, job: Job) -> Reason | None:
        """Start to copy what the host lacks of a resident; refused while a step computes it or a copy moves it."""
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
        self._device.pin(missing)
        self._copy_out(job, missing)
        return None

    def leave(self, job: Job, fate: Fate) -> Fate:
        """Decide what becomes of a preempted job's KV, before its device blocks are taken back.

        Blocks that the host lacks are pinned. Returns RECOMPUTE if the host has no room. Once the blocks are taken
        back, `advance` starts the copy.
        """
        if fate is Fate.SWAP and self._reserve(job):
            missing = self._missing(job)
            self._device.pin(missing)
            self._sides[job].leaving = missing
            self._forget_return(job)
            return Fate.SWAP
        self._forget_return(job)
        self._discard(job)
        return Fate.RECOMPUTE

    def advance(self, job: Job) -> None:
        """Start the copy of a swapped job's last blocks, once nothing computes into or copies them."""
        side = self._sides.get(job)
        if side is None or side.leaving is None or side.outgoing is not None or self._in_flight(job):
            return
        blocks, side.leaving = side.leaving, None
        if blocks:
            self._copy_out(job, blocks)
        else:
            side.saved_tokens = job.num_computed_tokens

    def forget(self, job: Job) -> None:
        """Remove an ended job; its running copies end by themselves."""
        self._forget_return(job)
        self._discard(job)

    # ---- a job comes back --------------------------------------------------------------------------

    def bring_back(self, job: Job, blocks: Sequence[int], num_found: int) -> None:
        """Start to copy a swapped job's KV into `blocks`, of which the first `num_found` hold it already."""
        self._idle[job] = len(blocks)
        end = self._blocks_for(job.num_computed_tokens)
        missing = tuple(blocks[num_found:end])
        if not missing:
            return
        self._device.pin(missing)
        copy = Copy(
            job=job,
            direction=Direction.TO_DEVICE,
            blocks=missing,
            host_blocks=tuple(self.host.blocks(job)[num_found:end]),
            num_tokens=job.num_computed_tokens,
        )
        self.restoring[job] = copy
        self._start(copy)

    def runs(self, job: Job) -> None:
        """Note that a job has tokens in this step, in case it is the first one after its return."""
        if self._idle.pop(job, None) is not None:
            self._running.add(job)

    def ran(self, job: Job) -> bool:
        """Drop the host copy of a job whose first step after its return is processed; True if it was one."""
        if job not in self._running:
            return False
        self._running.discard(job)
        self._discard(job)
        return True

    # ---- copies end --------------------------------------------------------------------------------

    def finish(self, copy: Copy) -> None:
        """A copy is done: release its device blocks, and start what waited for it."""
        side = self._end(copy)
        job = copy.job
        if copy.direction is Direction.TO_DEVICE:
            if self.restoring.get(job) is copy:
                del self.restoring[job]
        elif side.outgoing is copy:
            side.outgoing = None
            side.saved_tokens = copy.num_tokens
        self._settle(job, side)
        self.advance(job)

    def fail(self, copy: Copy) -> bool:
        """A copy failed; True if its job's KV is lost, and the job must be recomputed."""
        side, job = self._end(copy), copy.job
        if copy is not side.outgoing and copy is not self.restoring.get(job):
            self._settle(job, side)
            return False
        self._forget_return(job)
        self._discard(job)
        return copy.direction is Direction.TO_DEVICE or job.state is not JobState.RESIDENT

    def spoiled(self, copy: Copy) -> bool:
        """A copy that counted as done failed; True if its job's KV is lost."""
        job = copy.job
        if copy.direction is Direction.TO_DEVICE or job not in self._sides:
            return False
        self._discard(job)
        return job.state is JobState.SWAPPED

    # ---- internals ---------------------------------------------------------------------------------

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._device.block_size)

    def _kept_blocks(self, job: Job, saved_tokens: int) -> int:
        """How many of a job's blocks a copy of its first `saved_tokens` tokens still represents."""
        if saved_tokens == job.num_computed_tokens:
            return self._blocks_for(saved_tokens)
        return saved_tokens // self._device.block_size

    def _missing(self, job: Job) -> Sequence[int]:
        """The blocks of a resident that `unsent_blocks` counts."""
        blocks = self._device.blocks(job)
        return blocks[self._sent_blocks(job) : self._blocks_for(job.num_computed_tokens)]

    def _sent_blocks(self, job: Job) -> int:
        side = self._sides.get(job)
        if side is None or not side.wanted:
            return 0
        return self._kept_blocks(job, side.outgoing.num_tokens if side.outgoing else side.saved_tokens)

    def _reserve(self, job: Job) -> bool:
        """Reserve room on the host for all of a job, beyond what it has there."""
        if not self.host.reserve(job, self._blocks_for(job.num_computed_tokens)):
            return False
        self._sides.setdefault(job, _HostSide()).wanted = True
        return True

    def _forget_return(self, job: Job) -> None:
        self.restoring.pop(job, None)
        self._idle.pop(job, None)
        self._running.discard(job)

    def _discard(self, job: Job) -> None:
        """Mark a job's host copy, if there is one, as useless."""
        side = self._sides.get(job)
        if side is None:
            return
        side.wanted = False
        side.saved_tokens = 0
        side.outgoing = None
        if side.leaving is not None:
            self._device.unpin(side.leaving)
            side.leaving = None
        self._settle(job, side)

    def _settle(self, job: Job, side: _HostSide) -> None:
        if not side.wanted and not side.copies:
            self.host.drop(job)
            del self._sides[job]

    def _copy_out(self, job: Job, blocks: Sequence[int]) -> None:
        end = self._blocks_for(job.num_computed_tokens)
        copy = Copy(
            job=job,
            direction=Direction.TO_HOST,
            blocks=tuple(blocks),
            host_blocks=tuple(self.host.blocks(job)[end - len(blocks) : end]),
            num_tokens=job.num_computed_tokens,
        )
        self._sides[job].outgoing = copy
        job.swapped_blocks += len(blocks)
        self._start(copy)

    def _start(self, copy: Copy) -> None:
        self._sides[copy.job].copies += 1
        self._under_way[copy] = None
        self.started.append(copy)
        if self.serial:
            self.finish(copy)

    def _end(self, copy: Copy) -> _HostSide:
        """Remove a copy from the running ones, however it ended."""
        side = self._sides[copy.job]
        del self._under_way[copy]
        side.copies -= 1
        self._device.unpin(copy.blocks)
        return side

    # ---- checks ------------------------------------------------------------------------------------

    @property
    def num_pinned(self) -> int:
        """Device blocks that copies keep pinned, once for each copy."""
        copied = sum(len(copy.blocks) for copy in self._under_way)
        return copied + sum(len(side.leaving or ()) for side in self._sides.values())

    def check(self, residents: Sequence[Job]) -> None:
        """Assert that host blocks are conserved and that nothing is kept for ended jobs; O(jobs + blocks)."""
        self.host.check()
        for job, side in self._sides.items():
            assert side.wanted or side.copies, f"host blocks are kept for {job!r}, which has no use for them"
            assert side.copies == sum(copy.job is job for copy in self._under_way)
            needed = self._blocks_for(job.num_computed_tokens)
            assert job.state is not JobState.SWAPPED or self.host.held(job) >= needed
        assert set(self.restoring) <= set(self._idle)
        assert {*self._idle, *self._running} <= set(residents)
        held = sum(self._idle.values())
        assert held <= self._restore_blocks or len(self._idle) == 1
