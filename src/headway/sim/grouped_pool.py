"""KV memory of a simulated engine whose layers keep different tokens: vLLM's block pool, shared by groups of layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import lcm
from typing import NamedTuple

from headway.core.job import Job
from headway.core.plan import Reason
from headway.predict.models.kv_groups import KvGroup
from headway.sim.kv_pool import OWN_KEYS, BlockKey, KvPool, Table

_GONE = -1
"""Marks a table entry whose block's tokens have left every window."""


@dataclass(slots=True)
class _GroupedTable(Table):
    """The blocks of one live request, a list for each group; the first `cached` of each can be found.

    Nothing leaves a window before `drop_at_tokens` tokens are processed.
    """

    groups: list[list[int]] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    drop_at_tokens: int = 0


class _Found(NamedTuple):
    """Leading tokens that every group has, and each group's blocks of them that are still inside its window."""

    tokens: int
    groups: list[list[int]]


class GroupedKvPool(KvPool):
    """A pool for groups of layers, each with a table of its own, after vLLM 0.32 (kv_cache_coordinator.py).

    A job takes a block in every group. Once its tokens have left the group's window and their step is processed, a
    block is free, and can be found until it is taken. A prompt hits what all groups have; of a window, its last blocks.
    Groups may have blocks of different sizes; hits are whole blocks of all of them. There is no host memory.
    """

    def __init__(
        self,
        num_blocks: int,
        groups: Iterable[KvGroup],
        *,
        block_size: int,
        prefix_caching: bool,
        most_in_flight: int,
        in_flight: Callable[[Job], int],
        watermark_blocks: int = 0,
    ) -> None:
        super().__init__(
            num_blocks,
            block_size=block_size,
            prefix_caching=prefix_caching,
            watermark_blocks=watermark_blocks,
        )
        self._groups = [group for group in groups for _ in range(group.count)]
        self._aligned = lcm(*(group.block_size for group in self._groups))
        self._most_in_flight = most_in_flight
        self._in_flight = in_flight
        self._found: tuple[Job | None, _Found] = (None, self._nothing())

    # ---- requests come and go ----------------------------------------------------------------------

    def add(self, job: Job, shared: Sequence[BlockKey] = ()) -> None:
        """Register a new request with the keys (0 or more) of its prompt's leading full blocks."""
        self._serial += 1
        table = _GroupedTable(shared, -self._serial * OWN_KEYS)
        self._tables[job] = table
        self._empty(table)

    def _empty(self, table: _GroupedTable) -> None:
        table.groups = [[] for _ in self._groups]
        table.cached = [0] * len(self._groups)
        table.room_tokens = table.drop_at_tokens = 0
        self._num_started -= table.started
        table.started = False

    def _table(self, job: Job) -> _GroupedTable:
        table = self._tables[job]
        assert isinstance(table, _GroupedTable)
        return table

    def _nothing(self) -> _Found:
        return _Found(0, [[] for _ in self._groups])

    # ---- what core.fill and the engine ask -----------------------------------------------------------

    def finds(self, job: Job, index: int) -> bool:
        """Whether the first group that keeps all tokens finds a block of a waiting job. O(1)."""
        number = next((number for number, group in enumerate(self._groups) if not group.window), 0)
        row = index * self.block_size // self._groups[number].block_size
        return bool(self._holders.get(self._group_key(self._table(job), number, row)))

    def cached_tokens(self, job: Job) -> int:
        """Leading tokens of a waiting job that all groups find; remembered for `start`."""
        found = self._find_all(job)
        self._found = (job, found)
        return found.tokens

    def start(self, job: Job, num_tokens: int) -> Reason | None:
        """Allocate the found blocks and those of the next `num_tokens` tokens, if the whole job fits."""
        looked_up, found = self._found
        if looked_up is not job:
            found = self._find_all(job)
        self._found = (None, self._nothing())
        if (misfit := self._why_not(job, found)) is not None:
            return misfit
        if self._blocks_to(found.tokens + num_tokens, found) + self._watermark() > len(self._free):
            return Reason.ISL  # capping what windows hold admits slightly too much
        self.started(job)
        table = self._table(job)
        for number, blocks in enumerate(found.groups):
            first = self._groups[number].dropped_tokens(found.tokens) // self._groups[number].block_size
            held = blocks[first:]
            self._hold(held)
            table.groups[number] = [_GONE] * min(first, len(blocks)) + held
            table.cached[number] = len(blocks)
        self._fill_up(job, table, found.tokens + num_tokens, found.tokens)
        return None

    def grow(self, job: Job, num_tokens: int) -> bool:
        """Free what windows have left, and allocate for `num_tokens` more tokens; False if blocks are short."""
        table = self._table(job)
        computed = job.num_computed_tokens + num_tokens
        processed = job.num_computed_tokens - self._in_flight(job)
        if processed >= table.drop_at_tokens:
            self._drop(table, processed)
        if computed > table.room_tokens and self._lacking(table, computed) > len(self._free):
            return False
        self._fill_up(job, table, computed, processed)
        return True

    def misfit(self, job: Job, *, loaded_tokens: int = 0) -> Reason | None:
        """Which memory check a waiting job would fail now."""
        return self._why_not(job, self._find_all(job))

    def missing_blocks(self, job: Job) -> int:
        """Blocks that must come free before a waiting job passes all memory checks; 0 if it passes now."""
        return max(0, self._admission_blocks(job, self._find_all(job)) + self._watermark() - len(self._free))

    def cache(self, job: Job, num_tokens: int) -> None:
        """Make the full blocks among a job's first `num_tokens` tokens findable."""
        if self.prefix_caching:
            self._let_find(self._table(job), num_tokens)

    def blocks_for(self, num_tokens: int) -> int:
        """Most blocks that a job of `num_tokens` tokens holds, in all groups."""
        return sum(group.most_blocks(num_tokens, self._most_in_flight) for group in self._groups)

    def steady_tokens(self, num_jobs: int) -> int:
        """0: windows move with every token, so no step can be skipped."""
        return 0

    # ---- blocks ------------------------------------------------------------------------------------

    def _fill_up(self, job: Job, table: _GroupedTable, computed: int, processed: int) -> None:
        """Allocate blocks for `computed` tokens, which fit, in every group; make full blocks of known tokens
        findable.
        """
        if computed > table.room_tokens:
            for blocks, group in zip(table.groups, self._groups, strict=True):
                self._take(blocks, -(-computed // group.block_size))
            sizes = [group.block_size for group in self._groups]
            table.room_tokens = min(
                len(blocks) * size for blocks, size in zip(table.groups, sizes, strict=True)
            )
            self._next_drop(table)
        self.cache(job, min(computed, job.num_tokens))

    def _take(self, blocks: list[int], num_blocks: int) -> None:
        for _ in range(num_blocks - len(blocks)):
            block, _ = self._free.popitem(last=False)
            if self._key_of[block] is not None:
                self._evict(block)
            self._references[block] = 1
            blocks.append(block)

    def _hold(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if not self._references[block]:
                del self._free[block]
            self._references[block] += 1

    def _lacking(self, table: _GroupedTable, computed: int) -> int:
        return sum(
            max(0, -(-computed // group.block_size) - len(blocks))
            for blocks, group in zip(table.groups, self._groups, strict=True)
        )

    def _drop(self, table: _GroupedTable, processed: int) -> None:
        """Free the blocks whose tokens no later token sees, the last of each group first."""
        for blocks, group in zip(table.groups, self._groups, strict=True):
            end = min(group.dropped_tokens(processed) // group.block_size, len(blocks))
            begin = end
            while begin and blocks[begin - 1] != _GONE:
                begin -= 1
            self._let_go(blocks[begin:end])
            blocks[begin:end] = [_GONE] * (end - begin)
        self._next_drop(table)

    def _next_drop(self, table: _GroupedTable) -> None:
        """Note after how many processed tokens a block next leaves some window."""
        table.drop_at_tokens = min(
            (
                group.computed_when_dropped((blocks.count(_GONE) + 1) * group.block_size)
                for blocks, group in zip(table.groups, self._groups, strict=True)
                if group.window
            ),
            default=1 << 62,
        )

    def _let_find(self, table: _GroupedTable, num_tokens: int) -> None:
        full = num_tokens // self._aligned * self._aligned
        for number, blocks in enumerate(table.groups):
            end = min(full // self._groups[number].block_size, len(blocks))
            for row in range(table.cached[number], end):
                if (block := blocks[row]) != _GONE:
                    key = self._group_key(table, number, row)
                    self._key_of[block] = key
                    self._holders.setdefault(key, {})[block] = None
            table.cached[number] = max(table.cached[number], end)

    def _group_key(self, table: Table, number: int, row: int) -> BlockKey:
        """The key of a group's block: the group, and the tokens up to the block's end."""
        last = (row + 1) * self._groups[number].block_size // self.block_size - 1
        return table.key(last) * len(self._groups) + number

    def _take_back(self, table: Table) -> None:
        assert isinstance(table, _GroupedTable)
        for blocks in table.groups:
            self._let_go([block for block in blocks if block != _GONE])
        self._empty(table)

    # ---- lookups -----------------------------------------------------------------------------------

    def _find_all(self, job: Job) -> _Found:
        """What all groups have of a job's leading tokens, without its last one."""
        if not self.prefix_caching:
            return self._nothing()
        table = self._table(job)
        tokens = (job.num_tokens - 1) // self._aligned * self._aligned
        groups: list[list[int]] = []
        while True:
            begun = tokens
            groups = []
            for number in range(len(self._groups)):
                blocks, tokens = self._found_of(table, number, tokens)
                groups.append(blocks)
            if tokens == begun:
                return _Found(tokens, groups)

    def _found_of(self, table: _GroupedTable, number: int, tokens: int) -> tuple[list[int], int]:
        """A group's blocks of a prefix of at most `tokens` tokens, and the prefix's length."""
        group = self._groups[number]
        rows = tokens // group.block_size
        if not group.window or group.chunked:
            first = group.dropped_tokens(tokens) // group.block_size
            return self._from_left(table, number, first, rows)
        needed = -(-(group.window - 1) // group.block_size)
        found: list[int] = []
        for row in range(rows - 1, -1, -1):
            block = self._held(table, number, row)
            if block is None or (not found and (row + 1) * group.block_size % self._aligned):
                found = []
                continue
            found.append(block)
            if len(found) >= needed:
                return [_GONE] * row + found[::-1], (row + len(found)) * group.block_size
        aligned = len(found) * group.block_size // self._aligned * self._aligned
        return found[::-1][: aligned // group.block_size], aligned

    def _from_left(self, table: _GroupedTable, number: int, first: int, rows: int) -> tuple[list[int], int]:
        size = self._groups[number].block_size
        found = [_GONE] * first
        for row in range(first, rows):
            block = self._held(table, number, row)
            if block is None:
                break
            found.append(block)
        aligned = len(found) * size // self._aligned * self._aligned
        return found[: aligned // size], aligned

    def _held(self, table: _GroupedTable, number: int, row: int) -> int | None:
        holders = self._holders.get(self._group_key(table, number, row))
        return next(iter(holders)) if holders else None

    def _why_not(self, job: Job, found: _Found) -> Reason | None:
        needed = self._admission_blocks(job, found)
        if needed > len(self._free):
            return Reason.ISL
        return Reason.WATERMARK if needed + self._watermark() > len(self._free) else None

    def _admission_blocks(self, job: Job, found: _Found) -> int:
        """Free blocks that all known tokens of a job take, counting found blocks in the free line."""
        most = [group.most_blocks(job.num_tokens, self._most_in_flight) for group in self._groups]
        return self._blocks_beyond(most, found)

    def _blocks_to(self, computed: int, found: _Found) -> int:
        """Free blocks that its first `computed` tokens take."""
        return self._blocks_beyond([-(-computed // group.block_size) for group in self._groups], found)

    def _blocks_beyond(self, rows: Sequence[int], found: _Found) -> int:
        needed = 0
        for group, blocks, end in zip(self._groups, found.groups, rows, strict=True):
            dropped = group.dropped_tokens(found.tokens) // group.block_size
            needed += max(0, end - max(dropped, len(blocks)))
            needed += sum(not self._references[block] for block in blocks[dropped:] if block != _GONE)
        return needed

    def check(self, residents: Sequence[Job]) -> None:
        """Assert that every block is free or held, counted once for each holder; O(blocks)."""
        held = [0] * self.num_blocks
        for job in self._tables:
            table = self._table(job)
            assert any(table.groups) <= (job in residents), f"{job!r} holds blocks and is not resident"
            for blocks in table.groups:
                for block in blocks:
                    held[block] += block != _GONE
        assert self._num_started == sum(table.started for table in self._tables.values())
        assert held == self._references
        assert len(self._free) == held.count(0)
        for key, holders in self._holders.items():
            assert holders
            assert all(self._key_of[block] == key for block in holders)
        for job in residents:
            assert self._table(job).room_tokens >= job.num_computed_tokens
