"""The event loop and its order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from enum import IntEnum
from itertools import count
from math import inf


class Phase(IntEnum):
    """What comes first among events of one instant; within a phase, what was planned first.

    As vLLM's engine loop: a step's output is processed, then new requests are taken in, then the next
    step is scheduled. A copy between device and host that ends at the same instant is done before all of it, and a
    request handed over arrives after all of it, whoever scheduled first.
    """

    COPY = 0
    OUTPUT = 1
    ARRIVAL = 2
    SCHEDULE = 3
    MOVE = 4


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
