"""The cells of a simulation: run in few processes, kept in a folder, or watched closely one by one.

DIR/
├── simulation.json            what is simulated; the same command goes on, any other is refused
├── [seed=S/][load=X/]         a level for each that has several values
│   ├── run.json               and the rest as in `results.run_folder`
│   ├── <policy>.records.jsonl
│   ├── <policy>.summary.json  what the records do not hold
│   └── <policy>.cell.json     what the cell came to; written last, so it says that the cell is done
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from gzip import GzipFile
from pathlib import Path
from typing import BinaryIO

import msgspec

from headway.core.record import Outcome, Record
from headway.errors import ConfigError
from headway.explain.explanation import Explanation
from headway.explain.story import Story
from headway.json_file import read_json, write_json
from headway.lab.grid import GridCell, PolicyGrid
from headway.lab.kept_runs import Manifest, each_done, is_alone, only, open_folder
from headway.lab.policy_choice import label
from headway.lab.simulation import CellResult, Scenario, run_cell
from headway.lab.trace import read_once
from headway.results import RecordWriter, RunMeta, load_folder, start_run, write_info
from headway.results.run_folder import RECORDS_SUFFIX, run_file, seed_folder
from headway.sim.chrome_trace import ChromeTrace
from headway.sim.watcher import StoryWatcher
from headway.traces import TraceRequest
from headway.whole_file import appearing, left_behind, partial_path

MANIFEST = "simulation.json"
CELL_SUFFIX = ".cell.json"
VERSION = 2


@dataclass(frozen=True, slots=True)
class CellFolder:
    """The folder with the cells of one grid."""

    root: Path
    grid: PolicyGrid

    def open(self, manifest: Manifest, meta: RunMeta) -> None:
        """Make the folder, or continue in it.

        Raises ConfigError if it has anything except this very experiment, or cannot be written.
        """
        open_folder(self.root / MANIFEST, {"version": VERSION, **manifest}, "simulation")
        for folder, load in self._runs():
            start_run(folder, msgspec.structs.replace(meta, load=load), goes_on=True)

    def _runs(self) -> list[tuple[Path, float]]:
        grid = self.grid
        return [(self._run(GridCell("", load, seed)), load) for seed in grid.seeds for load in grid.loads]

    def _run(self, cell: GridCell) -> Path:
        folder = self.root if self.grid.num_seeds == 1 else seed_folder(self.root, cell.seed)
        return folder if len(self.grid.loads) == 1 else load_folder(folder, cell.load)

    def result(self, cell: GridCell) -> CellResult | None:
        """The result of a cell; None if it is not done."""
        return read_json(self._file(cell, CELL_SUFFIX), CellResult)

    def records(self, cell: GridCell) -> Path:
        """The path of a finished cell's records."""
        return self._file(cell, RECORDS_SUFFIX)

    def writer(self, cell: GridCell) -> RecordWriter:
        """A writer for the records of a running cell; `finish` moves them to their place."""
        return RecordWriter(partial_path(self.records(cell)))

    def finish(self, result: CellResult) -> None:
        """Move a cell's output to its place: the records, their additions, and last the mark that it is done."""
        records = self.records(result.cell)
        partial_path(records).replace(records)
        write_info(self._run(result.cell), label(result.cell.policy), result.info)
        path = self._file(result.cell, CELL_SUFFIX)
        write_json(path, result)

    def discard(self, cell: GridCell) -> None:
        """Remove the output of a cell that did not finish."""
        partial_path(self.records(cell)).unlink(missing_ok=True)

    def sweep_up(self) -> None:
        """Remove the leftovers of killed workers: partial files, and files of unfinished cells.

        Another command may be filling the same folder: its files stay.
        """
        for path in left_behind(self.root):
            path.unlink(missing_ok=True)
        for cell in self.grid.cells():
            if not self._file(cell, CELL_SUFFIX).exists():
                self.records(cell).unlink(missing_ok=True)

    def _file(self, cell: GridCell, suffix: str) -> Path:
        return run_file(self._run(cell), label(cell.policy), suffix)


Tick = Callable[[int], None]
"""Called with the number of requests that have just ended."""


def silent(requests: int) -> None:
    """A tick that does nothing."""


def run_cells(scenario: Scenario, folder: CellFolder, *, jobs: int, tick: Tick = silent) -> list[CellResult]:
    """Run the unfinished cells of the folder's grid in up to `jobs` processes; return all results, in order.

    The output does not depend on `jobs`. With one process, or one cell to run, everything happens in this process.
    KeyboardInterrupt passes through after all processes have ended; finished cells stay finished. The first cell that
    raises ends the others. Raises SimulationError if a process is killed from outside.
    """
    cells = folder.grid.cells()
    done = {cell: result for cell in cells if (result := folder.result(cell)) is not None}
    for result in done.values():
        tick(result.summary.requests)
    todo = [(cell,) for cell in cells if cell not in done]
    alone = is_alone(todo, jobs)
    do = partial(run_to_folder, scenario, folder, tick=tick if alone else silent)
    try:
        with closing(each_done(todo, partial(only, do), jobs)) as found:
            for cell, result in found:
                done[cell] = result
                if not alone:
                    tick(result.summary.requests)
    finally:
        folder.sweep_up()
    return [done[cell] for cell in cells]


def run_to_folder(scenario: Scenario, folder: CellFolder, cell: GridCell, tick: Tick = silent) -> CellResult:
    """Run one cell and put its records and result in the folder; an unfinished cell leaves nothing."""
    try:
        with folder.writer(cell) as writer:
            told = _ticking(tick)

            def keep(record: Record) -> None:
                writer.append(record)
                told(record)

            result = run_cell(scenario, cell, keep)
        folder.finish(result)
    finally:
        folder.discard(cell)
    return result


# ---- one cell in detail ---------------------------------------------------------------------------------

_SHOWN_IDS = 5


def explain(
    scenario: Scenario, cell: GridCell, request_id: str, tick: Tick = silent
) -> tuple[Story, Explanation | None]:
    """One request's story in a cell, and why it took as long (None if it ended before any step was planned).

    Raises ConfigError for an unknown id, naming some that exist.
    """
    request = _find(read_once(scenario.trace, cell.seed), request_id)
    system = scenario.system
    block_bytes = system.limits.block_size * system.calibration.kv_bytes_per_token
    from_s = request.arrival_s / cell.load if request.think_s is None else 0.0
    watcher = StoryWatcher(request_id, from_s, block_bytes)
    run_cell(scenario, cell, _ticking(tick), watcher)
    assert watcher.story is not None, "a simulation ended without this request"
    return watcher.story, watcher.explanation


def trace_schedule(
    scenario: Scenario, cell: GridCell, path: Path, tick: Tick = silent
) -> tuple[CellResult, ChromeTrace]:
    """Run one cell and write its schedule to `path`, compressed if the path ends in `.gz`.

    Equal cells give equal bytes. The file appears when it is complete. Raises ConfigError if it cannot be written.
    """
    limits = scenario.system.limits
    title = f"{label(cell.policy)}, {cell.place}, seed {cell.seed}, simulated"
    with _appearing(path) as file:
        names = scenario.system_of(cell.policy).names
        trace = ChromeTrace(file, title=title, instances=names, lanes=limits.pipeline_stages)
        result = run_cell(scenario, cell, _ticking(tick), trace)
        trace.close()
    return result, trace


def _ticking(tick: Tick) -> Callable[[Record], None]:
    return lambda record: tick(record.outcome is not Outcome.HANDED_OFF)


def _find(requests: list[TraceRequest], request_id: str) -> TraceRequest:
    for request in requests:
        if request.id == request_id:
            return request
    some = ", ".join(request.id for request in requests[:_SHOWN_IDS])
    raise ConfigError(f"no request {request_id!r} in the trace; its {len(requests):,} ids begin {some}")


@contextmanager
def _appearing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that appears when it is complete. A compressed one has neither a time nor a name inside, so
    bytes repeat.
    """
    try:
        with appearing(path) as raw, _packed(raw) if path.suffix == ".gz" else nullcontext(raw) as file:
            yield file
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error


def _packed(raw: BinaryIO) -> AbstractContextManager[BinaryIO]:
    return GzipFile("", "wb", fileobj=raw, mtime=0)  # type: ignore[return-value] # a binary file in all but its type
