"""A worker's side of swapping: carries out the scheduler's copies and reports their end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.engine.kv.copies import (
    BlockCopier,
    CopyOrder,
    CopyOrders,
    CopyReport,
    CpuCopier,
    CudaCopier,
    Ticket,
)
from headway.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = logging.getLogger(__name__)

REPORT_STEPS = 64
"""Steps between reports if no copy ends: a report costs its step some ten microseconds."""


@dataclass(slots=True)
class _UnderWay:
    order: CopyOrder
    ticket: Ticket
    to_host: bool


class KvWorker:
    """Starts a step's copies before the rest of the step, and reports those that have ended.

    A failed copy to the host spoils its host blocks until they are written again; copying a spoiled block back fails
    too. If a serial copy back fails just before its step, its device blocks are reported as invalid, so that vLLM
    computes them again.
    """

    def __init__(self, copier: BlockCopier, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self.copier = copier
        self._clock = clock
        self._under_way: list[_UnderWay] = []
        self._report = CopyReport()
        self._spoiled: set[int] = set()
        self._invalid: set[int] = set()
        self._forward_since_s: float | None = None
        self._steps_untold = 0

    @classmethod
    def over(
        cls,
        kv_caches: dict[str, torch.Tensor],
        kv_cache_config: KVCacheConfig,
        num_host_blocks: int,
        bytes_per_s: float | None,
    ) -> KvWorker:
        """Make a worker for copies between these layers' blocks and newly allocated host memory.

        Raises ConfigError if the machine lacks the memory.
        """
        copier = CudaCopier if next(iter(kv_caches.values())).device.type == "cuda" else CpuCopier
        layers = [block_first(cache, kv_cache_config.num_blocks) for cache in kv_caches.values()]
        try:
            return cls(copier(layers, num_host_blocks, bytes_per_s))
        except (RuntimeError, MemoryError) as error:
            size = num_host_blocks * sum(layer[0].nbytes for layer in layers)
            raise ConfigError(
                f"there is no room for {num_host_blocks} blocks of KV ({size} bytes) in host memory: {error}"
            ) from error

    def start(self, orders: CopyOrders) -> None:
        """Start a step's copies. Those to the host come first, since the step may overwrite their device blocks."""
        began_s = self._clock()
        for order in orders.to_host:
            self._attempt(order, self.copier.save, to_host=True, serial=orders.serial)
        for order in orders.to_device:
            self._attempt(order, self.copier.restore, to_host=False, serial=orders.serial)
        self._forward_since_s = self._clock()
        if orders.serial and (orders.to_host or orders.to_device):
            self._report.waited_s += self._forward_since_s - began_s

    def report(self) -> CopyReport | None:
        """What ended since the last report; called after a step's forward pass was submitted.

        None if no copy has ended. Times of forward passes are sent with the next finished copy, or every REPORT_STEPS
        steps.
        """
        if self._forward_since_s is not None:
            self._report.forward_s += self._clock() - self._forward_since_s
            self._forward_since_s = None
            self._steps_untold += 1
        for copy in self._take_ended():
            self._conclude(copy.order, copy.ticket, to_host=copy.to_host)
        report = self._report
        if self._steps_untold < REPORT_STEPS and not (report.done or report.failed):
            return None
        self._report = CopyReport()
        self._steps_untold = 0
        return report

    def take_invalid_blocks(self) -> set[int]:
        """Device blocks that were without their KV in the step that just ran; reading clears them."""
        invalid, self._invalid = self._invalid, set()
        return invalid

    def close(self) -> None:
        """End the copies that are under way."""
        self.copier.close()

    def _take_ended(self) -> list[_UnderWay]:
        """Remove the copies that have ended, in order within each direction.

        A copy that ends just after an earlier one was seen unfinished waits for the next report.
        """
        ended: list[_UnderWay] = []
        left: list[_UnderWay] = []
        for copy in self._under_way:
            overtakes = any(earlier.to_host is copy.to_host for earlier in left)
            (left if overtakes or not copy.ticket.done() else ended).append(copy)
        self._under_way = left
        return ended

    def _attempt(
        self, order: CopyOrder, begin: Callable[[CopyOrder], Ticket], *, to_host: bool, serial: bool
    ) -> None:
        if not to_host and not self._spoiled.isdisjoint(order.host_blocks):
            self._failed(order, to_host=False, serial=serial)
            return
        try:
            ticket = begin(order)
        except RuntimeError:
            logger.exception("a copy of %d KV blocks did not start", len(order.device_blocks))
            self._failed(order, to_host=to_host, serial=serial)
            return
        if serial:
            self._conclude(order, ticket, to_host=to_host, serial=True)
        else:
            self._under_way.append(_UnderWay(order, ticket, to_host))

    def _conclude(self, order: CopyOrder, ticket: Ticket, *, to_host: bool, serial: bool = False) -> None:
        try:
            seconds = ticket.wait()
        except RuntimeError:
            logger.exception("a copy of %d KV blocks failed", len(order.device_blocks))
            self._failed(order, to_host=to_host, serial=serial)
            return
        if to_host:
            self._spoiled.difference_update(order.host_blocks)
        self._report.done[order.number] = (1, seconds)

    def _failed(self, order: CopyOrder, *, to_host: bool, serial: bool) -> None:
        self._report.failed[order.number] = 1
        if to_host:
            self._spoiled.update(order.host_blocks)
        elif serial:
            self._invalid.update(order.device_blocks)


def block_first(cache: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """View a layer's KV with blocks as the first dimension; layouts differ by platform.

    An attention kernel may use smaller blocks, several for each of vLLM's. Raises ConfigError for a layer without
    blocks.
    """
    for dimension, size in enumerate(cache.shape):
        if size == num_blocks:
            return cache.movedim(dimension, 0)
    for dimension, size in enumerate(cache.shape):
        if size % num_blocks == 0:
            return cache.unflatten(dimension, (num_blocks, size // num_blocks)).movedim(dimension, 0)
    raise ConfigError(f"a layer's KV cache has shape {tuple(cache.shape)}, of which none counts blocks")
