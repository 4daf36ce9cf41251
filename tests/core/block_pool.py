"""A small real KV side: numbered blocks, some free, the others in the table of the job that holds them."""

from __future__ import annotations

from itertools import chain

from headway.core.job import Job, JobState
from headway.core.plan import Fate, Reason


class BlockPool:
    """Paged KV memory of `total_blocks` blocks, with vLLM's admission checks in front.

    A waiting job starts only if all its tokens known so far fit, and leave `watermark_blocks` free beside
    other jobs. `not_ready` and `cached` are set by the test, and so are `restoring`, `returned`, `leaving`
    (blocks coming free) and `host_full`; a swap takes no time here.
    """

    def __init__(self, total_blocks: int, *, block_size: int = 4, watermark_blocks: int = 0) -> None:
        self.total_blocks = total_blocks
        self.block_size = block_size
        self.watermark_blocks = watermark_blocks
        self.tables: dict[Job, list[int]] = {}
        self.not_ready: dict[Job, Reason] = {}
        self.cached: dict[Job, int] = {}
        self.restoring: set[Job] = set()
        self.returned: set[Job] = set()
        self.leaving = 0
        self.host_full = False
        self._free = list(range(total_blocks))

    @property
    def free_blocks(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._free)

    def ready(self, job: Job) -> Reason | None:
        """The reason that the test has set."""
        return self.not_ready.get(job)

    def cached_tokens(self, job: Job) -> int:
        """The number that the test has set; cached tokens take blocks like any other tokens."""
        return self.cached.get(job, 0)

    def start(self, job: Job, num_tokens: int) -> Reason | None:
        """Allocate for the cached and the first new tokens, if the whole sequence would fit."""
        assert num_tokens >= 1
        assert job not in self.tables
        misfit = self.misfit(job)
        if misfit is None:
            self.tables[job] = []
            swapped = job.state is JobState.SWAPPED
            assert self._extend(job, job.num_tokens if swapped else self.cached_tokens(job) + num_tokens)
        return misfit

    def prefetch(self, job: Job) -> Reason | None:
        """Start a swapped job, as `start` does."""
        return self.start(job, 1)

    def offload(self, job: Job) -> Reason | None:
        """Offload at once, if the host has room."""
        return Reason.HOST_BLOCKS if self.host_full else None

    def misfit(self, job: Job) -> Reason | None:
        """Which memory check a waiting job fails now."""
        needed = self._blocks(job.num_tokens)
        if needed > self.free_blocks:
            return Reason.ISL
        watermark = self.watermark_blocks if self.tables else 0
        return Reason.WATERMARK if needed + watermark > self.free_blocks else None

    def grow(self, job: Job, num_tokens: int) -> bool:
        """Allocate for more tokens of a job that is in."""
        assert num_tokens >= 1
        return self._extend(job, job.num_computed_tokens + num_tokens)

    def resume(self, job: Job, num_tokens: int) -> Reason | None:
        """Grow a job that came back, as `grow` does."""
        if not self.grow(job, num_tokens):
            return Reason.BLOCKS
        self.returned.discard(job)
        return None

    def _extend(self, job: Job, num_tokens: int) -> bool:
        table = self.tables[job]
        missing = self._blocks(num_tokens) - len(table)
        if missing > self.free_blocks:
            return False
        for _ in range(missing):
            table.append(self._free.pop())
        return True

    def release(self, job: Job, fate: Fate = Fate.RECOMPUTE) -> Fate:
        """Take all of a job's blocks back."""
        self._free.extend(self.tables.pop(job))
        return Fate.RECOMPUTE if self.host_full else fate

    def evict(self, job: Job) -> Fate:
        """Take all of a job's blocks back."""
        return self.release(job)

    @property
    def blocks_coming_free(self) -> int:
        """The number that the test has set."""
        return self.leaving

    def room(self, job: Job) -> int:
        """Tokens a job's blocks can hold."""
        return len(self.tables.get(job, ())) * self.block_size

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def check(self) -> None:
        """Assert that each block is in exactly one place."""
        places = sorted(chain(self._free, *self.tables.values()))
        assert places == list(range(self.total_blocks))
