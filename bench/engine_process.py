"""An engine in a process of its own, so that several can take turns: one that is idle takes next to no time."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from multiprocessing import get_context
from threading import Thread
from types import TracebackType
from typing import Self

from bench.fastserve_engine import ServingEngine
from bench.headway_real_engine import Kept, Memory, Run, serve
from headway.traces import TraceRequest


class EngineProcess:
    """A warm engine of `headway_real`, stock's or Headway's, that does one run at a time."""

    def __init__(self, kv_blocks: int, *, stock: bool) -> None:
        self._process = ProcessPoolExecutor(
            max_workers=1,
            mp_context=get_context("spawn"),
            initializer=_start,
            initargs=(kv_blocks, stock, os.getpid()),
        )

    def serve(self, run: Run, requests: Sequence[TraceRequest]) -> Kept:
        """Do a run."""
        return self._process.submit(_serve, run, requests).result()

    def __enter__(self) -> Self:
        """The engine starts with its first run."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the engine and its process."""
        with suppress(BrokenProcessPool):  # it has died, which whoever asked it for a run has heard
            self._process.submit(_stop).result()
        self._process.shutdown()


# ---- in the process ------------------------------------------------------------------------------------

_own = ExitStack()
"""Holds the process's one engine."""
_engines: list[ServingEngine] = []


def _start(kv_blocks: int, stock: bool, parent_pid: int) -> None:
    Thread(target=_end_with, args=(parent_pid,), daemon=True).start()
    _engines.append(_own.enter_context(Memory(kv_blocks).serving(stock=stock)))


def _end_with(parent_pid: int) -> None:
    """A bench that is killed leaves no engine behind; the engine's own processes end with this one."""
    while os.getppid() == parent_pid:
        time.sleep(1)
    os._exit(1)


def _stop() -> None:
    _own.close()


def _serve(run: Run, requests: Sequence[TraceRequest]) -> Kept:
    return serve(_engines[0], run, requests)
