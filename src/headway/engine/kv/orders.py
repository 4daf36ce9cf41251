"""What the scheduler and its workers tell each other about copies of KV blocks."""

from __future__ import annotations

from dataclasses import dataclass, field

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
