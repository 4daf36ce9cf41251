"""A list kept in key order: the index of every order whose keys do not drift."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from headway.core.job import Job

Key = tuple[Any, ...]
_Entry = tuple[Any, ...]
"""A key followed by its job: sorts as the key does, since keys are unique."""

_BLOCK = 512
"""Entries in a block before it is split: short enough to move cheaply, long enough to be few."""


class SortedIndex:
    """Jobs in ascending key order. Keys must be unique, so they end in (arrival, id) or a serial number.

    Holds blocks of at most _BLOCK sorted entries. The caller keeps each job's key. insert, remove, holds: O(log n)
    compares and one memmove within a block; position and slice O(n / _BLOCK) to find the place, then O(k).
    """

    def __init__(self) -> None:
        self._blocks: list[list[_Entry]] = []
        self._firsts: list[_Entry] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Job]:
        """Iterate lazily over every job in order; the index must not change meanwhile."""
        return (entry[-1] for block in self._blocks for entry in block)

    def insert(self, job: Job, key: Key) -> None:
        """Insert a job at its place."""
        entry = (*key, job)
        self._count += 1
        if not self._blocks:
            self._blocks.append([entry])
            self._firsts.append(entry)
            return
        number = self._block_of(key)
        block = self._blocks[number]
        at = bisect_left(block, key)
        block.insert(at, entry)
        if at == 0:
            self._firsts[number] = entry
        if len(block) > _BLOCK:
            self._split(number)

    def remove(self, job: Job, key: Key) -> None:
        """Remove an indexed job, given the key of its insertion."""
        number = self._block_of(key)
        block = self._blocks[number]
        at = bisect_left(block, key)
        assert block[at][-1] is job
        del block[at]
        self._count -= 1
        if not block:
            del self._blocks[number]
            del self._firsts[number]
        elif at == 0:
            self._firsts[number] = block[0]

    def holds(self, job: Job, key: Key) -> bool:
        """Whether a job is indexed under this key."""
        if not self._blocks:
            return False
        block = self._blocks[self._block_of(key)]
        at = bisect_left(block, key)
        return at < len(block) and block[at][-1] is job

    def position(self, key: Key) -> int:
        """How many jobs have a key below `key`."""
        if not self._blocks:
            return 0
        number = self._block_of(key)
        return sum(map(len, self._blocks[:number])) + bisect_left(self._blocks[number], key)

    def at(self, position: int) -> Job:
        """The job at a position; IndexError beyond the end."""
        return self.slice(position, position + 1)[0]

    def slice(self, start: int, stop: int) -> list[Job]:
        """Jobs `start` to `stop` in order."""
        jobs: list[Job] = []
        for block in self._blocks:
            if stop <= 0:
                break
            if start < len(block):
                jobs += [entry[-1] for entry in block[max(start, 0) : stop]]
            start -= len(block)
            stop -= len(block)
        return jobs

    def between(self, first: Key, last: Key, most: int) -> list[Job]:
        """At most `most` jobs with keys from `first` on and before `last`, in order. O(log n + k)."""
        jobs: list[Job] = []
        for block in self._blocks[self._block_of(first) :]:
            start = 0 if jobs else bisect_left(block, first)
            stop = bisect_left(block, last, start, min(len(block), start + most - len(jobs)))
            jobs += [entry[-1] for entry in block[start:stop]]
            if stop < len(block):
                break
        return jobs

    def _block_of(self, key: Key) -> int:
        """The block whose range covers `key`: the last that starts at or below it, else the first."""
        number = bisect_left(self._firsts, key)
        if number < len(self._firsts) and self._firsts[number][:-1] == key:
            return number
        return max(0, number - 1)

    def _split(self, number: int) -> None:
        block = self._blocks[number]
        half = len(block) // 2
        self._blocks[number : number + 1] = [block[:half], block[half:]]
        self._firsts.insert(number + 1, block[half])


class KeyedIndex(SortedIndex):
    """A `SortedIndex` that keeps the key of each of its jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: dict[Job, Key] = {}

    def put(self, job: Job, key: Key) -> None:
        """Insert a job at its place, or move it there."""
        self.keys[job] = key
        self.insert(job, key)

    def discard(self, job: Job) -> bool:
        """Remove a job if it is indexed; return whether it was."""
        key = self.keys.pop(job, None)
        if key is None:
            return False
        self.remove(job, key)
        return True
