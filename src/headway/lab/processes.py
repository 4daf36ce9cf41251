"""Spreads work over a few processes, all of which end with this one."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from threading import Thread
from typing import TypeVar

from headway.errors import SimulationError

_Item = TypeVar("_Item")
_Done = TypeVar("_Done")


def in_processes(
    work: Callable[[_Item], _Done],
    items: Sequence[_Item],
    jobs: int,
    *,
    then: Callable[[_Done], _Item | None] = lambda done: None,
) -> Generator[_Done, None, None]:
    """Yield `work`'s result for each item as it finishes, in up to `jobs` processes.

    If `then` returns a follow-up item for a result, that runs before items that have not begun. The processes are
    spawned afresh, so that no state of this process leaks into them, and end with it even if it is killed. Raises
    SimulationError if one of them is killed from outside.
    """
    workers, waiting = min(jobs, len(items)), iter(items)
    executor = ProcessPoolExecutor(
        max_workers=workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
    )
    try:
        with _ended_on_error():
            running = {_submit(executor, work, item) for item in islice(waiting, workers)}
            while running:
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    done = future.result()
                    following = then(done)
                    more = islice(waiting, 1) if following is None else [following]
                    running |= {_submit(executor, work, item) for item in more}
                    yield done
    except BrokenProcessPool:
        raise SimulationError(
            "a simulating process was killed, perhaps for want of memory; fewer --jobs need less. "
            "What is done is kept"
        ) from None
    finally:
        # Waits only for the executor's own thread, as the workers have ended. If it were left, it might close a pipe to
        # which Python writes at exit.
        executor.shutdown(cancel_futures=True)


def _submit(executor: ProcessPoolExecutor, work: Callable[[_Item], _Done], item: _Item) -> Future[_Done]:
    """Submit an item. A process started for it inherits blocked signals, until it ignores Ctrl-C itself.

    Otherwise a Ctrl-C during the second of its imports would print a traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return executor.submit(work, item)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin() -> None:
    Thread(target=_end_with_parent, daemon=True).start()
    # The parent has read the trace first and given the warnings about it.
    logging.getLogger("headway.traces").setLevel(logging.ERROR)
    # Ctrl-C reaches every process of a terminal; the first process decides for all.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def _end_with_parent() -> None:
    """End this process when its parent ends: a killed parent ends no worker, and workers would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _ended_on_error() -> Iterator[None]:
    """End the processes started inside the block if it fails, since a cell can take minutes."""
    before = multiprocessing.active_children()
    try:
        yield
    except BaseException:
        for process in multiprocessing.active_children():
            if process not in before:
                process.terminate()
                process.join()
        raise
