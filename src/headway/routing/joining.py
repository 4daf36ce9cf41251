"""Which queued batch a new request joins, if any. One rule a class."""

from __future__ import annotations

from collections.abc import Reversible
from dataclasses import dataclass
from math import ceil, inf
from typing import Protocol

from headway.routing.batch import Batch, Member


class Joining(Protocol):
    """Decides where a request waits; `batches` are the queued ones that may grow, oldest first."""

    def join(self, member: Member, batches: Reversible[Batch]) -> Batch | None:
        """The batch to join, or None to open a new one."""
        ...


@dataclass(frozen=True, slots=True)
class FixedSize:
    """The newest batch until it has `size` members: first come, first served, in batches of that size."""

    size: int

    def join(self, member: Member, batches: Reversible[Batch]) -> Batch | None:
        """The newest batch if it has a free seat; no other has. O(1)."""
        newest = next(iter(reversed(batches)), None)
        return newest if newest is not None and len(newest) < self.size else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastWaste:
    """The batch that wastes least with the request in it, if that is less than `wma_limit`.

    A batch that would need more KV tokens than `capacity_tokens`, padded and grown to its longest planned
    answer, is passed over, and so is one with `max_size` members. Each seat takes whole blocks of
    `block_tokens`. Of equals the oldest. O(batches) an arrival.
    Source: Magnus, Algorithm 1 (Phi is `wma_limit`, Theta / Delta is `capacity_tokens`).
    """

    capacity_tokens: int
    wma_limit: int
    block_tokens: int = 1
    max_size: int | None = None
    inclusive: bool = False

    def join(self, member: Member, batches: Reversible[Batch]) -> Batch | None:
        """The batch of least WMA with the member, or None."""
        best, least = None, inf
        for batch in batches:
            if self._fits(batch, member):
                waste = batch.wma_with(member, inclusive=self.inclusive)
                if waste < least:
                    best, least = batch, waste
        return best if least < self.wma_limit else None

    def _fits(self, batch: Batch, member: Member) -> bool:
        size = len(batch) + 1
        if self.max_size is not None and size > self.max_size:
            return False
        blocks = ceil(sum(batch.padded_with(member)) / self.block_tokens)
        return size * blocks * self.block_tokens <= self.capacity_tokens
