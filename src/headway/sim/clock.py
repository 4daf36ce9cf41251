"""The virtual clock: the order of events, and the duration of steps and copies."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from enum import IntEnum
from itertools import count
from math import inf
from random import Random

from headway.core.batch_shape import BatchShape
from headway.core.host_copies import Copy
from headway.predict.steps.calibration import StepSeconds
from headway.predict.steps.copies import TransferModel


class Phase(IntEnum):
    """The order of events at one instant; within a phase, earlier insertions come first.

    This follows vLLM's engine loop: a step's output is processed, then new requests are taken in, then the next step is
    scheduled. A copy between device and host that ends at the same instant is done before all of these. A handed-off
    request arrives after all of them, whichever engine scheduled first. Fleet changes come last.
    """

    COPY = 0
    OUTPUT = 1
    ARRIVAL = 2
    SCHEDULE = 3
    MOVE = 4
    SCALE = 5


class EventLoop:
    """Runs actions in the order (time, phase, insertion); `now_s` never goes back."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, Phase, int, Callable[[], None]]] = []
        self._serial = count()

    def at(self, time_s: float, phase: Phase, action: Callable[[], None]) -> None:
        """Schedule an action. Raises ValueError for a time in the past."""
        if not time_s >= self.now_s:
            raise ValueError(f"cannot plan for {time_s} s: it is {self.now_s} s")
        heapq.heappush(self._heap, (time_s, phase, next(self._serial), action))

    @property
    def next_s(self) -> float:
        """Time of the next action; inf if there is none."""
        return self._heap[0][0] if self._heap else inf

    def run(self) -> None:
        """Run until no action is left."""
        heap = self._heap
        while heap:
            self.now_s, _, _, action = heapq.heappop(heap)
            action()


class Clock:
    """Draws the duration of steps: the fitted law times a seeded draw from the measured residuals.

    `residuals` are ascending, equidistant quantiles, interpolated in between; (1.0,) means no noise. One draw a step,
    in the order of steps, so that runs repeat byte for byte.
    """

    def __init__(self, law: StepSeconds, residuals: Sequence[float] = (1.0,), seed: int = 0) -> None:
        self._law = law
        self._residuals = (*residuals, residuals[-1])
        self._intervals = len(residuals) - 1
        self._random = Random(seed).random

    def step_s(self, shape: BatchShape) -> float:
        """Duration of the next step, which has this shape."""
        seconds = self._law.step_s(shape)
        if not self._intervals:
            return seconds * self._residuals[0]
        place = self._random() * self._intervals
        below = int(place)
        low, high = self._residuals[below], self._residuals[below + 1]
        return seconds * (low + (high - low) * (place - below))


class Pipeline:
    """Pipeline stages, each busy with one step at a time; every stage takes an equal share of a step.

    A step enters when the host has prepared it and the first stage is free. With a single stage this is a plain device;
    with a second step scheduled ahead, the host's part is hidden behind the first. Source: the flow shop recurrence;
    vLLM's pipeline parallelism keeps as many steps in flight as there are stages.

    A stage learns its copies with its part of a step, and copies its own layers over its own GPUs' links. So the last
    stage begins later than the first, and if a step waits for copies every stage waits.
    """

    def __init__(self, stages: int) -> None:
        self._free_s = [0.0] * stages

    def dispatch(self, now_s: float, host_s: float, step_s: float, wait_s: float = 0.0) -> float:
        """When a step submitted now comes out, if the host needs `host_s` first and the stages `step_s` in all.

        Each stage waits `wait_s` for copies before its part.
        """
        ready_s = now_s + host_s
        share_s = wait_s + step_s / len(self._free_s)
        for stage, free_s in enumerate(self._free_s):
            ready_s = max(ready_s, free_s) + share_s
            self._free_s[stage] = ready_s
        return ready_s

    def lag_s(self, now_s: float) -> float:
        """How much later than the first stage the last one begins the newest step; 0 for one stage."""
        return max(0.0, self._free_s[-1] - max(now_s, self._free_s[0]))

    def cut(self, now_s: float) -> None:
        """Free every stage now: the steps in the stages are abandoned."""
        self._free_s = [min(free_s, now_s) for free_s in self._free_s]


class CopyEngine:
    """One direction of copies: one at a time, in order, beside the steps.

    A copy takes the law's seconds for its bytes (`block_bytes` a block), however many layers it has.
    """

    def __init__(self, law: TransferModel, block_bytes: int) -> None:
        self._law = law
        self._block_bytes = block_bytes
        self._free_s = 0.0

    def seconds(self, copy: Copy) -> float:
        """Duration of a copy after its start."""
        return self._law.seconds(len(copy.blocks) * self._block_bytes)

    def submit(self, copy: Copy, now_s: float) -> float:
        """When a copy submitted now will be done."""
        self._free_s = max(self._free_s, now_s) + self.seconds(copy)
        return self._free_s
