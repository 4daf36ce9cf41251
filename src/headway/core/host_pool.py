"""Host memory for KV copies: which blocks each job has there."""

from __future__ import annotations

from collections.abc import Sequence

from headway.core.job import Job


class HostPool:
    """Gives host blocks to jobs; the simulator and the connector keep the same account.

    A job's n-th host block is for the n-th block of its sequence. Never more than `num_blocks` are reserved: a
    job that finds no room is to be recomputed instead. Costs: `reserve` and `drop` O(blocks moved), the rest
    O(1), `check` O(blocks).
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks))
        self._held: dict[Job, list[int]] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks nobody has reserved."""
        return len(self._free)

    def blocks(self, job: Job) -> Sequence[int]:
        """The blocks reserved for a job, in the order of its tokens."""
        return self._held.get(job, ())

    def held(self, job: Job) -> int:
        """How many blocks are reserved for a job."""
        return len(self.blocks(job))

    def reserve(self, job: Job, num_blocks: int) -> bool:
        """See to it that a job has at least `num_blocks` in all; False, and nothing changed, if the host is full."""
        more = num_blocks - self.held(job)
        if more > len(self._free):
            return False
        if more > 0:
            self._held.setdefault(job, []).extend(self._free.pop() for _ in range(more))
        return True

    def drop(self, job: Job) -> None:
        """Give a job's blocks back; nothing to do if it has none. No copy may be reading or writing them."""
        self._free.extend(reversed(self._held.pop(job, [])))

    def check(self) -> None:
        """Assert that every block is free or reserved once."""
        reserved = [block for blocks in self._held.values() for block in blocks]
        assert sorted(reserved + self._free) == list(range(self.num_blocks))
