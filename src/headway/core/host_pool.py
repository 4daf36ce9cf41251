"""Host memory for KV copies: how many blocks each job has there, and how many of them are true copies."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.job import Job


@dataclass(slots=True)
class _Holding:
    """A job's host blocks, in the order of its tokens; the first `complete` of them hold what the device holds."""

    num_blocks: int
    complete: int = 0


class HostPool:
    """Counts the host blocks of each job; the simulator and the connector keep the same account.

    Blocks are reserved before a copy starts and are in flight until it is committed; those of one job are
    the first ones of its sequence, so that numbers say which. Never more than `num_blocks` are reserved: a
    job that finds no room is to be recomputed instead. All operations O(1), `check` O(jobs).
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.free_blocks = num_blocks
        self._holdings: dict[Job, _Holding] = {}

    def held(self, job: Job) -> int:
        """Blocks reserved for a job."""
        holding = self._holdings.get(job)
        return holding.num_blocks if holding else 0

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
        if more > self.free_blocks:
            return False
        if more > 0:
            self.free_blocks -= more
            self._holdings.setdefault(job, _Holding(0)).num_blocks += more
        return True

    def commit(self, job: Job, num_blocks: int) -> None:
        """Note that the first `num_blocks`, all of them reserved, are complete."""
        holding = self._holdings[job]
        assert num_blocks <= holding.num_blocks, "a copy of more blocks than were reserved"
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
            self.free_blocks += holding.num_blocks

    def check(self) -> None:
        """Assert that every block is free or reserved once, and no more complete than reserved."""
        reserved = sum(holding.num_blocks for holding in self._holdings.values())
        assert reserved + self.free_blocks == self.num_blocks
        assert self.free_blocks >= 0
        assert all(0 <= holding.complete <= holding.num_blocks for holding in self._holdings.values())
