"""Copies of KV blocks between device and host: the orders, and the workers' copiers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata


@dataclass(frozen=True, slots=True)
class CopyOrder:
    """Blocks to copy in one direction, each device block with its host block. `number` identifies the order on both
    sides.
    """

    number: int
    device_blocks: tuple[int, ...]
    host_blocks: tuple[int, ...]


@dataclass
class CopyOrders(KVConnectorMetadata):  # type: ignore[misc]
    """A step's copies: those to the host run first, then those to the device. With `serial` the step waits for them."""

    serial: bool = False
    to_host: list[CopyOrder] = field(default_factory=list)
    to_device: list[CopyOrder] = field(default_factory=list)


@dataclass
class CopyReport(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """What workers finished since their last report: for each order the number of workers, and the slowest one's
    seconds.

    `failed` counts workers in the same way. `waited_s` is how long steps waited for copies, `forward_s` how long
    forward passes took, each of the slowest worker.
    """

    done: dict[int, tuple[int, float]] = field(default_factory=dict)
    failed: dict[int, int] = field(default_factory=dict)
    waited_s: float = 0.0
    forward_s: float = 0.0

    def aggregate(self, other: CopyReport) -> CopyReport:
        """Merge two reports."""
        done, failed = dict(self.done), dict(self.failed)
        for number, (workers, seconds) in other.done.items():
            before, slowest = done.get(number, (0, 0.0))
            done[number] = (before + workers, max(slowest, seconds))
        for number, workers in other.failed.items():
            failed[number] = failed.get(number, 0) + workers
        return CopyReport(
            done, failed, max(self.waited_s, other.waited_s), max(self.forward_s, other.forward_s)
        )


class Ticket(Protocol):
    """A copy that is under way."""

    def done(self) -> bool:
        """Whether the copy has ended, successfully or not."""

    def wait(self) -> float:
        """Wait for the end. Returns the seconds that the copy took; raises its error."""


class BlockCopier(Protocol):
    """Copies blocks between device and host, in order within each direction."""

    def save(self, order: CopyOrder) -> Ticket:
        """Start a copy to the host, after all earlier work of the device."""

    def restore(self, order: CopyOrder) -> Ticket:
        """Start a copy to the device. Later work of the device may use the blocks once the ticket is done."""

    def close(self) -> None:
        """End the copies that are under way."""


def pieces(order: CopyOrder, most: int) -> Iterator[tuple[list[int], list[int]]]:
    """Split an order into pieces of at most `most` device and host blocks."""
    for at in range(0, len(order.device_blocks), most):
        yield list(order.device_blocks[at : at + most]), list(order.host_blocks[at : at + most])


PIECE_BLOCKS = 64
"""Blocks moved at a time. The staging buffer has this size."""


class CpuCopier:
    """Copies with one thread for each direction, so that copies run beside a step where cores are free.

    `bytes_per_s` stretches a copy to the time that a link of this bandwidth would take. It may be changed while no copy
    is under way. Host memory holds a block's layers together.
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
        """Start a copy to the host. The step before has ended, since it ran on this thread."""
        return CpuTicket(self._to_host.submit(self._timed, self._gather, order))

    def restore(self, order: CopyOrder) -> CpuTicket:
        """Start a copy to the device."""
        return CpuTicket(self._to_device.submit(self._timed, self._scatter, order))

    def close(self) -> None:
        """Wait for copies that have begun; drop the others."""
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
        """Whether the copy has ended."""
        return self._future.done()

    def wait(self) -> float:
        """Wait for the copy; return its seconds."""
        return self._future.result()


GPU_PIECE_BLOCKS = 32
"""Blocks moved at a time. The staging buffer on the device has this size."""


class CudaCopier:
    """Copies with one CUDA stream for each direction, ordered after the compute submitted before. The host only
    submits.

    A block's layers lie together in host memory, so neighbouring blocks are one transfer over the link. On the device
    the layers are gathered and scattered at the device's own bandwidth. Each transfer and each layer costs the host a
    submission of some 25 us, for which the engine waits. `bytes_per_s` limits the reported bandwidth from above.
    """

    def __init__(
        self, layers: Sequence[torch.Tensor], num_host_blocks: int, bytes_per_s: float | None
    ) -> None:
        self._layers = list(layers)
        self._device = layers[0].device
        shape = (len(layers), *layers[0].shape[1:])
        # Pinned afterwards with vLLM's function: PyTorch rounds pinned allocations up to a power of two.
        self._host = torch.empty((num_host_blocks, *shape), dtype=layers[0].dtype)
        from vllm.v1.simple_kv_offload.cuda_mem_ops import pin_tensor  # absent from a vLLM without CUDA

        pin_tensor(self._host)
        self._block_bytes = self._host[0].nbytes
        self._bytes_per_s = bytes_per_s
        self._to_host = _Link(torch.cuda.Stream(self._device))
        self._to_device = _Link(torch.cuda.Stream(self._device))

    def save(self, order: CopyOrder) -> CudaTicket:
        """Start a copy to the host, after the compute submitted so far."""
        return self._submit(order, self._to_host, self._gather)

    def restore(self, order: CopyOrder) -> CudaTicket:
        """Start a copy to the device, after the compute submitted so far, which may still read these blocks."""
        return self._submit(order, self._to_device, self._scatter)

    def close(self) -> None:
        """Wait for the copies that are under way."""
        self._to_host.stream.synchronize()
        self._to_device.stream.synchronize()

    def _submit(self, order: CopyOrder, link: _Link, move: object) -> CudaTicket:
        stream = link.stream
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            start = torch.cuda.Event(enable_timing=True)
            start.record(stream)
            for device_blocks, host_blocks in pieces(in_host_order(order), GPU_PIECE_BLOCKS):
                move(self._on_device(device_blocks), host_blocks)  # type: ignore[operator]
            end = torch.cuda.Event(enable_timing=True)
            end.record(stream)
        least_s = 0.0
        if self._bytes_per_s is not None:
            least_s = len(order.device_blocks) * self._block_bytes / self._bytes_per_s
        link.due_s = max(link.due_s, time.perf_counter()) + least_s
        return CudaTicket(start, end, link.due_s, least_s)

    def _on_device(self, blocks: list[int]) -> torch.Tensor:
        """Move block numbers to the device from pinned memory; from other memory the host would wait for the whole
        stream.
        """
        return torch.tensor(blocks, pin_memory=True).to(self._device, non_blocking=True)

    def _gather(self, device_blocks: torch.Tensor, host_blocks: list[int]) -> None:
        gathered = torch.stack([layer.index_select(0, device_blocks) for layer in self._layers], dim=1)
        for at, first, count in runs(host_blocks):
            self._host[first : first + count].copy_(gathered[at : at + count], non_blocking=True)

    def _scatter(self, device_blocks: torch.Tensor, host_blocks: list[int]) -> None:
        shape = (len(host_blocks), *self._host.shape[1:])
        gathered = torch.empty(shape, dtype=self._host.dtype, device=self._device)
        for at, first, count in runs(host_blocks):
            gathered[at : at + count].copy_(self._host[first : first + count], non_blocking=True)
        for index, layer in enumerate(self._layers):
            layer.index_copy_(0, device_blocks, gathered[:, index])


def in_host_order(order: CopyOrder) -> CopyOrder:
    """Sort an order's blocks as they lie in host memory. O(blocks log)."""
    pairs = sorted(zip(order.host_blocks, order.device_blocks, strict=True))
    return replace(
        order,
        host_blocks=tuple(host for host, _ in pairs),
        device_blocks=tuple(device for _, device in pairs),
    )


def runs(blocks: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield each run of consecutive blocks: its index in the list, its first block, and its length."""
    start = 0
    for at in range(1, len(blocks) + 1):
        if at == len(blocks) or blocks[at] != blocks[at - 1] + 1:
            yield start, blocks[start], at - start
            start = at


@dataclass(slots=True)
class _Link:
    """One direction: its stream, and the time at which a link of the given bandwidth would be free."""

    stream: torch.cuda.Stream
    due_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CudaTicket:
    """A copy on one of the streams. It is done at `due_s` at the earliest, since it has to last `least_s`."""

    start: torch.cuda.Event
    end: torch.cuda.Event
    due_s: float
    least_s: float

    def done(self) -> bool:
        """Whether the copy has ended."""
        return bool(self.end.query()) and time.perf_counter() >= self.due_s

    def wait(self) -> float:
        """Wait for the copy. Returns its seconds by the device's clock, or `least_s` if that is more."""
        self.end.synchronize()
        time.sleep(max(0.0, self.due_s - time.perf_counter()))
        return max(self.least_s, float(self.start.elapsed_time(self.end)) / 1e3)
