"""Many cells in few processes; what is done is kept, whatever happens to the rest."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice
from threading import Thread
from typing import TypeVar

from headway.core.record import Outcome, Record
from headway.errors import SimulationError
from headway.lab.cell_folder import CellFolder
from headway.lab.grid import Cell
from headway.lab.simulation import CellResult, Scenario, run_cell

Tick = Callable[[int], None]
"""Hears how many requests more have ended."""

_Item = TypeVar("_Item")
_Done = TypeVar("_Done")


def run_cells(
    scenario: Scenario, folder: CellFolder, *, jobs: int, tick: Tick = lambda requests: None
) -> list[CellResult]:
    """Run the cells of the folder's grid that are not done, in up to `jobs` processes; all results, in order.

    What is written does not depend on `jobs`. With one process, or one cell to run, everything happens in this
    one. KeyboardInterrupt passes through with all processes ended; cells that are done stay done. The first
    cell that raises ends the others. Raises SimulationError if a process is killed from outside.
    """
    cells = folder.grid.cells()
    done = {cell: result for cell in cells if (result := folder.result(cell)) is not None}
    for result in done.values():
        tick(result.summary.requests)
    todo = [cell for cell in cells if cell not in done]
    try:
        if min(jobs, len(todo)) <= 1:
            for cell in todo:
                done[cell] = run_to_folder(scenario, folder, cell, tick)
        else:
            with closing(in_processes(_work_on, todo, jobs, _start_worker, scenario, folder)) as results:
                for result in results:
                    done[result.cell] = result
                    tick(result.summary.requests)
    finally:
        folder.sweep_up()
    return [done[cell] for cell in cells]


def run_to_folder(
    scenario: Scenario, folder: CellFolder, cell: Cell, tick: Tick = lambda requests: None
) -> CellResult:
    """Run one cell and put its records and what it came to in the folder; nothing if it does not come to its end."""
    try:
        with folder.writer(cell) as writer:

            def keep(record: Record) -> None:
                writer.append(record)
                tick(record.outcome is not Outcome.HANDED_OFF)

            result = run_cell(scenario, cell, keep)
        folder.finish(result)
    finally:
        folder.discard(cell)
    return result


# ---- other processes -----------------------------------------------------------------------------------

_work: tuple[Scenario, CellFolder] | None = None
"""What this worker process was started with."""


def _start_worker(scenario: Scenario, folder: CellFolder) -> None:
    global _work
    _work = (scenario, folder)
    ignore_interrupts()


def ignore_interrupts() -> None:
    """Leave Ctrl-C, which reaches every process of a terminal, to the first one: it decides about the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def _work_on(cell: Cell) -> CellResult:
    assert _work is not None, "a worker was started without its work"
    return run_to_folder(*_work, cell)


def in_processes(
    work: Callable[[_Item], _Done],
    items: Sequence[_Item],
    jobs: int,
    start: Callable[..., None] = ignore_interrupts,
    *start_with: object,
    then: Callable[[_Done], _Item | None] = lambda done: None,
) -> Generator[_Done, None, None]:
    """What `work` makes of each item, as it comes, in up to `jobs` processes that begin with `start`.

    Where `then` makes another item of what was done, that is next, before those that have not begun.
    They are started afresh (spawn), so that nothing of this process leaks into them, and end with it, even if it is
    killed. Raises SimulationError if one of them is killed from outside.
    """
    workers, waiting = min(jobs, len(items)), iter(items)
    executor = ProcessPoolExecutor(
        max_workers=workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=partial(_begin, start, *start_with),
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
        # Waits for the executor's own thread alone, as the workers have ended: left behind, it closes the pipe
        # that Python writes to at exit, now and then just before.
        executor.shutdown(cancel_futures=True)


def _submit(executor: ProcessPoolExecutor, work: Callable[[_Item], _Done], item: _Item) -> Future[_Done]:
    """Hand an item in; a process that is started for it inherits that Ctrl-C is blocked, until it ignores it itself.

    Interrupted in the second that its imports take, it would end with a traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return executor.submit(work, item)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(start: Callable[..., None], *start_with: object) -> None:
    Thread(target=_end_with_parent, daemon=True).start()
    # What was left out of a trace has been said by the parent, which read it first.
    logging.getLogger("headway.traces").setLevel(logging.ERROR)
    start(*start_with)


def _end_with_parent() -> None:
    """Wait for the parent's end: one that is killed ends nobody, and its workers would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _ended_on_error() -> Iterator[None]:
    """End the processes started inside if it does not come to its end: a cell can take minutes."""
    before = multiprocessing.active_children()
    try:
        yield
    except BaseException:
        for process in multiprocessing.active_children():
            if process not in before:
                process.terminate()
                process.join()
        raise
