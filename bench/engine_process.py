"""An engine in a process of its own, so that several can take turns."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, ExitStack, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from signal import SIGCONT
from threading import Thread
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from bench.engine_time import EngineTime, TurnTime, signal_all


class HasWorkers(Protocol):
    """An engine of this process, whose workers are stopped while it has no turn."""

    @property
    def worker_pids(self) -> list[int]:
        """Their processes."""


_Engine = TypeVar("_Engine", bound=HasWorkers)
_Engine_co = TypeVar("_Engine_co", bound=HasWorkers, covariant=True)
_Found = TypeVar("_Found")
Work = Callable[[_Engine, EngineTime], _Found]
"""A run: what an engine does by a clock of its own, and what came of it. Goes to the engine's process and back."""


class EngineKind(Protocol[_Engine_co]):
    """Which engine: equal ones do for each other."""

    def __hash__(self) -> int:
        """Of what makes it equal to others."""

    def serving(self) -> AbstractContextManager[_Engine_co]:
        """A warm engine."""


class EngineProcess:
    """A warm engine that does one run at a time and works in its turn."""

    def __init__(self, kind: EngineKind[Any]) -> None:
        context = get_context("spawn")
        self._turns, self._theirs = context.Pipe()
        self._process = ProcessPoolExecutor(
            max_workers=1,
            mp_context=context,
            initializer=_start,
            initargs=(kind, os.getpid(), self._theirs),
        )

    def begin(self, work: Work[Any, _Found], speed: float = 1.0) -> Future[_Found]:
        """Start a run, which goes on turn by turn; `speed` as `TurnTime` has it."""
        return self._process.submit(_do, work, speed)

    def turn(self) -> bool:
        """Let it work on its run for a turn; whether it wants more: not when the run is over, or it has died."""
        try:
            self._turns.send(None)
            goes_on: bool = self._turns.recv()
        except (EOFError, OSError):
            return False
        return goes_on

    def __enter__(self) -> Self:
        """Once the engine has started."""
        self._process.submit(_started).result()
        self._theirs.close()  # so that the end of the process is the end of the pipe
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the engine and its process."""
        with suppress(BrokenProcessPool):  # it has died, which whoever asked it for a run has heard
            self._process.submit(_stop).result()
        self._process.shutdown()


def do_in_turn(
    engines: Sequence[EngineProcess], works: Sequence[Work[Any, _Found]], speed: float = 1.0
) -> list[Future[_Found]]:
    """Do runs, each on its own engine, at the same pace of the machine; all have ended, well or not."""
    begun = [engine.begin(work, speed) for engine, work in zip(engines, works, strict=True)]
    working = list(engines)
    while working:
        working = [engine for engine in working if engine.turn()]
    wait(begun)
    return begun


# ---- in the process ------------------------------------------------------------------------------------

_own = ExitStack()
"""Holds the process's one engine."""
_engines: list[HasWorkers] = []
_turns: list[Connection] = []


def _start(kind: EngineKind[Any], parent_pid: int, turns: Connection) -> None:
    Thread(target=_end_with, args=(parent_pid,), daemon=True).start()
    _engines.append(_own.enter_context(kind.serving()))
    _turns.append(turns)


def _end_with(parent_pid: int) -> None:
    """A bench that is killed leaves no engine behind; the engine's own processes end with this one."""
    while os.getppid() == parent_pid:
        time.sleep(1)
    for engine in _engines:
        signal_all(engine.worker_pids, SIGCONT)
    os._exit(1)


def _started() -> None:
    """Nothing but to be answered."""


def _stop() -> None:
    _own.close()


def _do(work: Work[Any, _Found], speed: float) -> _Found:
    with TurnTime(_turns[0], _engines[0].worker_pids, speed) as clock:
        return work(_engines[0], clock)
