"""How many of the requests that are under way begin alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headway.core.job import Job


class LiveBlocks:
    """Counts, for each block, the live jobs whose prompts begin with it. O(blocks) a call."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._live: dict[str, tuple[int, ...]] = {}

    def come(self, job: Job) -> None:
        """A job is under way; nothing new if it was."""
        if job.id not in self._live:
            self._live[job.id] = job.prefix_blocks
            self._counts.update(job.prefix_blocks)

    def go(self, job: Job) -> None:
        """It is no longer, if it was."""
        counts = self._counts
        for block in self._live.pop(job.id, ()):
            counts[block] -= 1
            if not counts[block]:
                del counts[block]

    def shared_by(self, blocks: Sequence[int]) -> list[int]:
        """How many live jobs begin with each of these."""
        counts = self._counts
        return [counts[block] for block in blocks]
