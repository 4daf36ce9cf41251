"""An engine stepped by hand whose steps take made-up time, for what is built on the real one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from headway.core.batch_shape import BatchShape
from headway.engine.stepped_engine import ReportedSizes, SteppedStep
from tests.engine.sizes import SIZES

SCHEDULE_S = 1e-4


def law_s(shape: BatchShape) -> float:
    """Seconds of a step, without the scheduler's time."""
    return 1e-3 + 1e-5 * shape.num_tokens + 1e-7 * shape.decode_context_tokens


@dataclass(slots=True)
class FakeRequest:
    """A request of the fake engine."""

    id: str
    prompt: list[int]
    left: int
    computed: int = 0

    def needs(self) -> int:
        return max(1, len(self.prompt) - self.computed)


class FakeEngine:
    """Serves residents in order of arrival with one token budget, as the real one's shapes would be."""

    def __init__(self, sizes: ReportedSizes = SIZES) -> None:
        self.sizes = sizes
        self.waiting: deque[FakeRequest] = deque()
        self.running: list[FakeRequest] = []
        self.served = 0
        self.seen: list[FakeRequest] = []
        self.interrupt_after: int | None = None
        self._steps = 0

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def fresh_id(self) -> str:
        self.served += 1
        return str(self.served)

    def make_request(self, request_id: str, prompt: Sequence[int], output_tokens: int) -> FakeRequest:
        assert len(prompt) + output_tokens <= self.sizes.max_model_len
        return FakeRequest(request_id, list(prompt), output_tokens)

    def add(self, request: FakeRequest) -> None:
        self.waiting.append(request)
        self.seen.append(request)

    def step(self) -> SteppedStep | None:
        if not self.busy:
            return None
        self._steps += 1
        if self.interrupt_after is not None and self._steps > self.interrupt_after:
            raise KeyboardInterrupt
        while self.waiting and len(self.running) < self.sizes.max_num_seqs:
            self.running.append(self.waiting.popleft())
        shape, budget = BatchShape(), self.sizes.max_num_batched_tokens
        for request in list(self.running):
            tokens = min(request.needs(), budget)
            if not tokens:
                break
            budget -= tokens
            shape.add(tokens, request.computed)
            request.computed += tokens
            if request.computed >= len(request.prompt):
                request.left -= 1
            if not request.left:
                self.running.remove(request)
        return SteppedStep(shape=shape, seconds=law_s(shape) + SCHEDULE_S, schedule_s=SCHEDULE_S)

    def on_workers(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        return [function(FakeWorker(self.sizes.num_blocks), *args)]


class FakeWorker:
    """A worker whose KV cache is two layers of numbered blocks, block first as on CPUs, second as on CUDA."""

    def __init__(self, num_blocks: int) -> None:
        numbers = torch.arange((num_blocks + 1) * 8, dtype=torch.float32)
        self.model_runner = self
        self.kv_caches = [
            numbers.reshape(num_blocks + 1, 2, 4).clone(),
            numbers.reshape(2, num_blocks + 1, 4).clone(),
        ]
