"""Host memory for KV copies: which blocks each job has there, and how many of them are true copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headway.core.job import Job


@dataclass(slots=True)
class _Holding:
    """A job's host blocks, in the order of its tokens; the first `complete` of them hold what the device holds."""

    blocks: list[int] = field(default_factory=list)
    complete: int = 0


class HostPool:
    """Gives host blocks to jobs; the simulator and the connector keep the same account.

    Blocks are reserved before a copy starts and are in flight until it is committed. A job's n-th host block
    is for the n-th block of its sequence. Never more than `num_blocks` are reserved: a job that finds no room
    is to be recomputed instead. Costs: `reserve` and `drop` O(blocks moved), the rest O(1), `check` O(blocks).
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks))
        self._holdings: dict[Job, _Holding] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks nobody has reserved."""
        return len(self._free)

    def blocks(self, job: Job) -> Sequence[int]:
        """The blocks reserved for a job, in the order of its tokens."""
        holding = self._holdings.get(job)
        return holding.blocks if holding else ()

    def held(self, job: Job) -> int:
        """How many blocks are reserved for a job."""
        return len(self.blocks(job))

    def complete(self, job: Job) -> int:
        """Leading blocks of a job whose copy is complete and still true."""
        holding = self._holdings.get(job)
        return holding.complete if holding else 0

    def in_flight(self, job: Job) -> int:
        """Blocks of a job that are reserved and not, or no longer, true copies."""
        return self.held(job) - self.complete(job)

    def reserve(self, job: Job, num_blocks: int) -> bool:
        """See to it that a job has at least `num_blocks` in all; False, and nothing changed, if the host is full."""
        more = num_blocks - self.held(job)
        if more > len(self._free):
            return False
        if more > 0:
            blocks = self._holdings.setdefault(job, _Holding()).blocks
            blocks.extend(self._free.pop() for _ in range(more))
        return True

    def commit(self, job: Job, num_blocks: int) -> None:
        """Note that the first `num_blocks`, all of them reserved, are complete."""
        holding = self._holdings[job]
        assert num_blocks <= len(holding.blocks), "a copy of more blocks than were reserved"
        holding.complete = max(holding.complete, num_blocks)

    def spoil(self, job: Job, num_blocks: int) -> None:
        """Note that no more than the first `num_blocks` are still true: the job has run since."""
        holding = self._holdings.get(job)
        if holding is not None:
            holding.complete = min(holding.complete, num_blocks)

    def drop(self, job: Job) -> None:
        """Give a job's blocks back; nothing to do if it has none. No copy may be reading or writing them."""
        holding = self._holdings.pop(job, None)
        if holding is not None:
            self._free.extend(reversed(holding.blocks))

    def check(self) -> None:
        """Assert that every block is free or reserved once, and no more complete than reserved."""
        reserved = [block for holding in self._holdings.values() for block in holding.blocks]
        assert sorted(reserved + self._free) == list(range(self.num_blocks))
        assert all(0 <= holding.complete <= len(holding.blocks) for holding in self._holdings.values())
