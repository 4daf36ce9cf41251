"""What time it is for an engine that serves a stream: the machine's, or its own while several take turns."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from signal import SIGCONT, SIGSTOP, Signals
from typing import Self

NAP_S = 0.002
"""How long an idle engine waits before it looks for arrivals again."""
START_MARGIN_S = 0.1
TURN_S = 0.1
"""Of an engine's own time: long beside what it costs to find the caches full of another's weights, short beside what
a machine's speed takes to change.
"""


class WallTime:
    """The machine's: an idle engine sleeps."""

    speed = 1.0

    def __init__(self) -> None:
        self._origin_s = 0.0

    def begin(self) -> None:
        """The stream begins soon."""
        self._origin_s = time.perf_counter() + START_MARGIN_S

    def now_s(self) -> float:
        """Seconds of the stream."""
        return time.perf_counter() - self._origin_s

    def idle(self, until_s: float) -> None:
        """Nobody asks for anything until then."""
        time.sleep(NAP_S)

    def stepped(self) -> None:
        """A step is over."""


class TurnTime:
    """An engine's own: what it has worked, and the times between requests, which it does not wait for.

    Whoever holds the turn works, the others stand still, and no clock but its own goes on. So engines that serve the
    same stream are compared within tenths of a second, whatever the machine's speed does from one second to the next.
    A turn is TURN_S or a step, whichever is longer; `turns` brings each, and is told at its end whether this engine
    wants more. Its worker processes are stopped meanwhile: vLLM's look for work without a rest for a second after the
    last. Used as a context: what is done before and after the stream needs the turn too. While the machine's clock
    goes on by a second this one goes on by `speed`: half of one where the machine has become half as fast.
    """

    def __init__(self, turns: Connection, worker_pids: Sequence[int], speed: float = 1.0) -> None:
        self.speed = speed
        self._turns = turns
        self._worker_pids = worker_pids
        self._origin_s = 0.0
        self._turn_ends_s = 0.0

    def __enter__(self) -> Self:
        """Wait for the first turn."""
        self._turns.recv()
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the rest to the others."""
        self._turns.send(False)

    def begin(self) -> None:
        """The stream begins now."""
        self._origin_s = time.perf_counter()
        self._turn_ends_s = TURN_S

    def now_s(self) -> float:
        """Seconds of the stream, the others' turns left out."""
        return (time.perf_counter() - self._origin_s) * self.speed

    def idle(self, until_s: float) -> None:
        """It is then at once."""
        skipped_s = max(0.0, until_s - self.now_s())
        self._origin_s -= skipped_s / self.speed
        self._turn_ends_s += skipped_s

    def stepped(self) -> None:
        """A step is over, and perhaps the turn."""
        now_s = self.now_s()
        if now_s < self._turn_ends_s:
            return
        signal_all(self._worker_pids, SIGSTOP)
        self._turns.send(True)
        self._turns.recv()
        signal_all(self._worker_pids, SIGCONT)
        self._origin_s = time.perf_counter() - now_s / self.speed
        self._turn_ends_s = now_s + TURN_S


EngineTime = WallTime | TurnTime


def signal_all(pids: Iterable[int], signal: Signals) -> None:
    """Send a signal to those of the processes that are left."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal)
