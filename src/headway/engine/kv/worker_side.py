"""A worker's side of swapping: carries out the scheduler's copies and says when they are done."""

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
"""A report costs a step some ten microseconds on its way, so without a copy there is one every so many steps."""


@dataclass(slots=True)
class _UnderWay:
    order: CopyOrder
    ticket: Ticket
    to_host: bool


class KvWorker:
    """Starts a step's copies before anything else of the step, and reports those that have ended.

    A copy that fails leaves its host blocks spoiled, until they are written again: a copy back from a spoiled
    block fails too. Of a serial one back, whose step is about to run, the device blocks are reported as
    invalid, which makes vLLM compute them again.
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
        """A worker that copies between these layers' blocks and host memory taken now.

        Raises ConfigError if there is not enough of it.
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
        """Start a step's copies: first those to the host, whose device blocks the step may write."""
        began_s = self._clock()
        for order in orders.to_host:
            self._attempt(order, self.copier.save, to_host=True, serial=orders.serial)
        for order in orders.to_device:
            self._attempt(order, self.copier.restore, to_host=False, serial=orders.serial)
        self._forward_since_s = self._clock()
        if orders.serial and (orders.to_host or orders.to_device):
            self._report.waited_s += self._forward_since_s - began_s

    def report(self) -> CopyReport | None:
        """What has been done since the last report; called when a step's forward pass has been submitted.

        None if no copy has ended: the passes' times are told with the next that does, or every REPORT_STEPS steps.
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
        """Device blocks that the step just run found without their KV."""
        invalid, self._invalid = self._invalid, set()
        return invalid

    def close(self) -> None:
        """End the copies under way."""
        self.copier.close()

    def _take_ended(self) -> list[_UnderWay]:
        """Copies that have ended, each direction's in the order they were asked for.

        One may end between two looks at those before it; it is then left for the next report, as they are.
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
    """A view of a layer's KV whose first dimension counts blocks; where that is differs by platform.

    An attention kernel may have its own, smaller blocks, several of them to one of vLLM's. Raises ConfigError
    for a layer that is not kept in blocks.
    """
    for dimension, size in enumerate(cache.shape):
        if size == num_blocks:
            return cache.movedim(dimension, 0)
    for dimension, size in enumerate(cache.shape):
        if size % num_blocks == 0:
            return cache.unflatten(dimension, (num_blocks, size // num_blocks)).movedim(dimension, 0)
    raise ConfigError(f"a layer's KV cache has shape {tuple(cache.shape)}, of which none counts blocks")
