"""Copies of KV blocks where the device is the CPU: from memory to memory, beside the step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from headway.engine.kv.orders import CopyOrder
from headway.engine.kv.worker_side import pieces

PIECE_BLOCKS = 64
"""Blocks moved at a time: what is gathered on the way takes that much memory."""


class CpuCopier:
    """One thread a direction, so that a copy runs beside the step's own threads where cores are free.

    `bytes_per_s` makes a copy last at least as long as a link of that bandwidth would take; it may be set anew
    while none is under way. Host memory holds a block's layers together.
    """

    def __init__(
        self, layers: Sequence[torch.Tensor], num_host_blocks: int, bytes_per_s: float | None
    ) -> None:
        self._layers = list(layers)
        self._host = torch.empty((num_host_blocks, len(layers), *layers[0].shape[1:]), dtype=layers[0].dtype)
        self._block_bytes = self._host[0].nbytes
        self.bytes_per_s = bytes_per_s
        self._to_host = ThreadPoolExecutor(1, "kv-to-host")
        self._to_device = ThreadPoolExecutor(1, "kv-to-device")

    def save(self, order: CopyOrder) -> CpuTicket:
        """Start to copy to the host; the step before has ended, since it ran on this thread."""
        return CpuTicket(self._to_host.submit(self._timed, self._gather, order))

    def restore(self, order: CopyOrder) -> CpuTicket:
        """Start to copy back."""
        return CpuTicket(self._to_device.submit(self._timed, self._scatter, order))

    def close(self) -> None:
        """Wait for the copies that have begun; the others are dropped."""
        self._to_host.shutdown(cancel_futures=True)
        self._to_device.shutdown(cancel_futures=True)

    def _timed(self, move: object, order: CopyOrder) -> float:
        began_s = time.perf_counter()
        for device_blocks, host_blocks in pieces(order, PIECE_BLOCKS):
            move(torch.tensor(device_blocks), torch.tensor(host_blocks))  # type: ignore[operator]
        if self.bytes_per_s is not None:
            least_s = len(order.device_blocks) * self._block_bytes / self.bytes_per_s
            time.sleep(max(0.0, least_s - (time.perf_counter() - began_s)))
        return time.perf_counter() - began_s

    def _gather(self, device_blocks: torch.Tensor, host_blocks: torch.Tensor) -> None:
        for index, layer in enumerate(self._layers):
            self._host[:, index].index_copy_(0, host_blocks, layer.index_select(0, device_blocks))

    def _scatter(self, device_blocks: torch.Tensor, host_blocks: torch.Tensor) -> None:
        for index, layer in enumerate(self._layers):
            layer.index_copy_(0, device_blocks, self._host[:, index].index_select(0, host_blocks))


class CpuTicket:
    """A copy on one of the threads."""

    def __init__(self, future: Future[float]) -> None:
        self._future = future

    def done(self) -> bool:
        """Whether it has ended."""
        return self._future.done()

    def wait(self) -> float:
        """Seconds it took."""
        return self._future.result()
