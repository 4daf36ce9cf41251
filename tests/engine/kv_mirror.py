"""A worker's memory in small: what each KV block holds, token by token, on the device and on the host."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request

from headway.engine.kv.copies import CopyOrder, CopyOrders, CopyReport
from headway.engine.model_free import BLOCK_SIZE
from tests.engine.scripts import HearingEngine

NOTHING = -1


class MirrorEngine(HearingEngine):
    """Computes, copies and overwrites blocks as workers do, and asserts that every step finds its KV.

    Copies that nobody waits for happen as late as they are reported, `copy_steps` steps after they were
    ordered, so that a block let go too early is seen. Orders named in `failing` come to nothing.
    """

    def __init__(self, built: Any, copy_steps: int = 0) -> None:
        super().__init__(built)
        num_blocks = built.kv_cache_manager.block_pool.num_gpu_blocks
        self.device = np.full((num_blocks, BLOCK_SIZE), NOTHING)
        self.host = np.full((built.view.host_total_blocks, BLOCK_SIZE), NOTHING)
        self.copied_blocks = {"out": 0, "in": 0}
        self.failing: set[int] = set()
        self.worst_in_flight = 0
        self._late: deque[CopyOrders] = deque(CopyOrders() for _ in range(copy_steps))

    def compute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Copies first, then the tokens of each request, with what they attend to checked."""
        result = super().compute(output)
        result.kv_connector_output = self._copy(output.kv_connector_metadata)
        for request_id, granted in output.num_scheduled_tokens.items():
            self._attend(self.scheduler.requests[request_id], granted)
        return result

    def _copy(self, orders: CopyOrders) -> KVConnectorOutput:
        if not orders.serial:
            self._late.append(orders)
            orders = self._late.popleft()
        report = CopyReport()
        invalid: set[int] = set()
        for order in orders.to_host:
            self._move(order, self.device, self.host, order.device_blocks, order.host_blocks, report)
            self.copied_blocks["out"] += len(order.host_blocks)
        for order in orders.to_device:
            self._move(order, self.host, self.device, order.host_blocks, order.device_blocks, report)
            self.copied_blocks["in"] += len(order.host_blocks)
            if orders.serial and order.number in report.failed:
                invalid.update(order.device_blocks)
        return KVConnectorOutput(kv_connector_worker_meta=report, invalid_block_ids=invalid)

    def _move(
        self,
        order: CopyOrder,
        source: NDArray[np.int64],
        target: NDArray[np.int64],
        sources: tuple[int, ...],
        targets: tuple[int, ...],
        report: CopyReport,
    ) -> None:
        if order.number in self.failing:
            report.failed[order.number] = 1
            return
        for one, other in zip(sources, targets, strict=True):
            target[other] = source[one]
        report.done[order.number] = (1, 1e-3)

    def _attend(self, request: Request, granted: int) -> None:
        """The tokens before must be where the request's table says; the new ones are written there."""
        end = request.num_computed_tokens
        tokens, positions = self._tokens(request, end), np.arange(end)
        table = np.array(self.scheduler.kv_cache_manager.get_block_ids(request.request_id)[0])
        blocks, slots = table[positions // BLOCK_SIZE], positions % BLOCK_SIZE
        before, new = slice(end - granted), slice(end - granted, end)
        found = self.device[blocks[before], slots[before]]
        assert (found == tokens[before]).all(), f"{request.request_id} found {found}, not {tokens[before]}"
        self.device[blocks[new], slots[new]] = tokens[new]

    def _tokens(self, request: Request, end: int) -> NDArray[np.int64]:
        """The tokens of the first `end` positions, known or about to be."""
        known = request.all_token_ids[:end]
        if len(known) < end:
            serial = self._serial.setdefault(request.request_id, len(self._serial))
            known = [*known, *(1_000_000 + serial * 10_000 + position for position in range(len(known), end))]
        return np.array(known, dtype=np.int64)
