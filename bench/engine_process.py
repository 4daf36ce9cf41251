"""An engine in a process of its own, so that several can take turns."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from signal import SIGCONT
from threading import Thread
from types import TracebackType
from typing import Self

from bench.engine_time import TurnTime, signal_all
from bench.fastserve_engine import ServingEngine
from bench.headway_real_engine import Kept, Memory, Run, serve
from headway.traces import TraceRequest


class EngineProcess:
    """A warm engine of `headway_real` that does one run at a time and works in its turn."""

    def __init__(self, memory: Memory) -> None:
        context = get_context("spawn")
        self._turns, self._theirs = context.Pipe()
        self._process = ProcessPoolExecutor(
            max_workers=1,
            mp_context=context,
            initializer=_start,
            initargs=(memory, os.getpid(), self._theirs),
        )

    def begin(self, run: Run, requests: Sequence[TraceRequest]) -> Future[Kept]:
        """Start a run, which goes on turn by turn."""
        return self._process.submit(_serve, run, requests)

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


def serve_in_turn(
    engines: Sequence[EngineProcess], runs: Sequence[tuple[Run, Sequence[TraceRequest]]]
) -> list[Kept]:
    """Do runs, each with its stream and on its own engine, at the same pace of the machine."""
    begun = [engine.begin(*run) for engine, run in zip(engines, runs, strict=True)]
    working = list(engines)
    while working:
        working = [engine for engine in working if engine.turn()]
    return [run.result() for run in begun]


# ---- in the process ------------------------------------------------------------------------------------

_own = ExitStack()
"""Holds the process's one engine."""
_engines: list[ServingEngine] = []
_turns: list[Connection] = []


def _start(memory: Memory, parent_pid: int, turns: Connection) -> None:
    Thread(target=_end_with, args=(parent_pid,), daemon=True).start()
    _engines.append(_own.enter_context(memory.serving()))
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


def _serve(run: Run, requests: Sequence[TraceRequest]) -> Kept:
    with TurnTime(_turns[0], _engines[0].worker_pids) as clock:
        return serve(_engines[0], run, requests, clock)
