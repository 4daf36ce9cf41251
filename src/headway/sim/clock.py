"""The virtual clock: the order of events, and how long steps and copies take."""

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
    """What comes first among events of one instant; within a phase, what was planned first.

    As vLLM's engine loop: a step's output is processed, then new requests are taken in, then the next
    step is scheduled. A copy between device and host that ends at the same instant is done before all of it, and a
    request handed over arrives after all of it, whichever engine scheduled first. The size of a fleet changes last.
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
        """Plan an action; a time that has passed is a ValueError."""
        if not time_s >= self.now_s:
            raise ValueError(f"cannot plan for {time_s} s: it is {self.now_s} s")
        heapq.heappush(self._heap, (time_s, phase, next(self._serial), action))

    @property
    def next_s(self) -> float:
        """When the next action is planned for; inf if nothing is."""
        return self._heap[0][0] if self._heap else inf

    def run(self) -> None:
        """Run until nothing is planned."""
        heap = self._heap
        while heap:
            self.now_s, _, _, action = heapq.heappop(heap)
            action()


class Clock:
    """Seconds of a step: the fitted law times a residual drawn from those measured, seeded.

    `residuals` are ascending quantiles at equal distances, between which is interpolated; (1.0,) is no
    noise. One draw a step, in the order of steps, so that runs repeat byte for byte.
    """

    def __init__(self, law: StepSeconds, residuals: Sequence[float] = (1.0,), seed: int = 0) -> None:
        self._law = law
        self._residuals = (*residuals, residuals[-1])
        self._intervals = len(residuals) - 1
        self._random = Random(seed).random

    def step_s(self, shape: BatchShape) -> float:
        """Seconds the next step of this shape takes."""
        seconds = self._law.step_s(shape)
        if not self._intervals:
            return seconds * self._residuals[0]
        place = self._random() * self._intervals
        below = int(place)
        low, high = self._residuals[below], self._residuals[below + 1]
        return seconds * (low + (high - low) * (place - below))


class Pipeline:
    """Stages in a row, each busy with one step at a time; a step takes each for an equal share.

    A step enters when the host has prepared it and the first stage is free. With one stage this is a
    device; with a second step scheduled ahead, the host's part is hidden behind the first. Source: the flow
    shop recurrence; vLLM's pipeline parallelism keeps as many steps in flight as there are stages.

    A stage learns what is to be copied with its part of a step, and copies its own layers over its own GPUs' links:
    the last one begins later than the first, and where a step waits for copies each stage does.
    """

    def __init__(self, stages: int) -> None:
        self._free_s = [0.0] * stages

    def dispatch(self, now_s: float, host_s: float, step_s: float, wait_s: float = 0.0) -> float:
        """When a step handed over now comes out, if the host needs `host_s` first and the stages `step_s` in all.

        Each stage waits `wait_s` for copies before its part.
        """
        ready_s = now_s + host_s
        share_s = wait_s + step_s / len(self._free_s)
        for stage, free_s in enumerate(self._free_s):
            ready_s = max(ready_s, free_s) + share_s
            self._free_s[stage] = ready_s
        return ready_s

    def lag_s(self, now_s: float) -> float:
        """How much later than the first stage the last one comes to what was handed over last; 0 for one stage."""
        return max(0.0, self._free_s[-1] - max(now_s, self._free_s[0]))

    def cut(self, now_s: float) -> None:
        """Every stage is free from now on at the latest: what they are busy with is given up."""
        self._free_s = [min(free_s, now_s) for free_s in self._free_s]


class CopyEngine:
    """One direction: one copy at a time, in the order they were asked for, beside the steps.

    A copy takes the law's seconds for its bytes, `block_bytes` a block, however many layers it is made of.
    """

    def __init__(self, law: TransferModel, block_bytes: int) -> None:
        self._law = law
        self._block_bytes = block_bytes
        self._free_s = 0.0

    def seconds(self, copy: Copy) -> float:
        """Seconds the copy takes once it has begun."""
        return self._law.seconds(len(copy.blocks) * self._block_bytes)

    def submit(self, copy: Copy, now_s: float) -> float:
        """When a copy asked for now will be done."""
        self._free_s = max(self._free_s, now_s) + self.seconds(copy)
        return self._free_s
