"""Copies of KV blocks between device and host: how they are ordered, and how a worker makes them."""

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
    """Blocks to copy one way, each device block with its host block; `number` is how both sides call it."""

    number: int
    device_blocks: tuple[int, ...]
    host_blocks: tuple[int, ...]


@dataclass
class CopyOrders(KVConnectorMetadata):  # type: ignore[misc]
    """A step's copies: those to the host come first, then those back. With `serial` the step waits for them."""

    serial: bool = False
    to_host: list[CopyOrder] = field(default_factory=list)
    to_device: list[CopyOrder] = field(default_factory=list)


@dataclass
class CopyReport(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """What workers have done since they last said: for each order, how many of them, and the slowest's seconds.

    `failed` counts workers likewise. `waited_s` is what steps' compute waited for copies, `forward_s` what their
    forward passes took, each of the slowest worker.
    """

    done: dict[int, tuple[int, float]] = field(default_factory=dict)
    failed: dict[int, int] = field(default_factory=dict)
    waited_s: float = 0.0
    forward_s: float = 0.0

    def aggregate(self, other: CopyReport) -> CopyReport:
        """The report of both."""
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
    """A copy under way."""

    def done(self) -> bool:
        """Whether it has ended, well or not."""

    def wait(self) -> float:
        """Wait for its end; returns the seconds it took, raises what went wrong."""


class BlockCopier(Protocol):
    """Copies blocks between device and host, each direction in the order asked for."""

    def save(self, order: CopyOrder) -> Ticket:
        """Start to copy to the host what the device's earlier work leaves in these blocks."""

    def restore(self, order: CopyOrder) -> Ticket:
        """Start to copy back; the device's later work finds it once the ticket is done."""

    def close(self) -> None:
        """End the copies under way."""


def pieces(order: CopyOrder, most: int) -> Iterator[tuple[list[int], list[int]]]:
    """An order's device and host blocks, `most` at a time."""
    for at in range(0, len(order.device_blocks), most):
        yield list(order.device_blocks[at : at + most]), list(order.host_blocks[at : at + most])


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


GPU_PIECE_BLOCKS = 32
"""Blocks moved at a time: what is gathered on the device on the way takes that much of its memory."""


class CudaCopier:
    """One stream a direction, ordered after the compute submitted before; the host only submits.

    A block's layers lie together in host memory, so blocks that do too are one transfer over the link; on the device
    they are gathered and scattered at its own bandwidth. Every transfer and every layer costs the host a submission of
    some 25 us, for which the engine waits. `bytes_per_s` is a lower bound on how long a copy lasts, as it is reported.
    """

    def __init__(
        self, layers: Sequence[torch.Tensor], num_host_blocks: int, bytes_per_s: float | None
    ) -> None:
        self._layers = list(layers)
        self._device = layers[0].device
        shape = (len(layers), *layers[0].shape[1:])
        # Pinned afterwards, by vLLM's own: what PyTorch allocates pinned it rounds up to a power of two.
        self._host = torch.empty((num_host_blocks, *shape), dtype=layers[0].dtype)
        from vllm.v1.simple_kv_offload.cuda_mem_ops import pin_tensor  # which a vLLM without CUDA may lack

        pin_tensor(self._host)
        self._block_bytes = self._host[0].nbytes
        self._bytes_per_s = bytes_per_s
        self._to_host = _Link(torch.cuda.Stream(self._device))
        self._to_device = _Link(torch.cuda.Stream(self._device))

    def save(self, order: CopyOrder) -> CudaTicket:
        """Start to copy to the host, once the compute submitted so far is done."""
        return self._submit(order, self._to_host, self._gather)

    def restore(self, order: CopyOrder) -> CudaTicket:
        """Start to copy back, once the compute submitted so far, which may read these blocks, is done."""
        return self._submit(order, self._to_device, self._scatter)

    def close(self) -> None:
        """Wait for the copies under way."""
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
        """From pinned memory: from any other the host would wait for all that the stream waits for."""
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
    """The copy with its blocks in the order in which they lie in host memory. O(blocks log)."""
    pairs = sorted(zip(order.host_blocks, order.device_blocks, strict=True))
    return replace(
        order,
        host_blocks=tuple(host for host, _ in pairs),
        device_blocks=tuple(device for _, device in pairs),
    )


def runs(blocks: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Where each stretch of blocks that lie together begins in the list, its first block, and how many they are."""
    start = 0
    for at in range(1, len(blocks) + 1):
        if at == len(blocks) or blocks[at] != blocks[at - 1] + 1:
            yield start, blocks[start], at - start
            start = at


@dataclass(slots=True)
class _Link:
    """One direction: its stream, and until when a link of the bandwidth given would be taken."""

    stream: torch.cuda.Stream
    due_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CudaTicket:
    """A copy on one of the streams; not done before `due_s`, since it is to last `least_s` at least."""

    start: torch.cuda.Event
    end: torch.cuda.Event
    due_s: float
    least_s: float

    def done(self) -> bool:
        """Whether it has ended."""
        return bool(self.end.query()) and time.perf_counter() >= self.due_s

    def wait(self) -> float:
        """Seconds it took on the device's own clock, or was to last at least."""
        self.end.synchronize()
        time.sleep(max(0.0, self.due_s - time.perf_counter()))
        return max(self.least_s, float(self.start.elapsed_time(self.end)) / 1e3)
