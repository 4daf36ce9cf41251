"""Copies of KV blocks between a GPU and pinned host memory, on streams of their own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from vllm.v1.simple_kv_offload.cuda_mem_ops import pin_tensor

from headway.engine.kv.orders import CopyOrder
from headway.engine.kv.worker_side import pieces

PIECE_BLOCKS = 32
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
            for device_blocks, host_blocks in pieces(in_host_order(order), PIECE_BLOCKS):
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
    """The same copy, its blocks in the order in which they lie in host memory. O(blocks log)."""
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
