"""Cells on disk: which are done, and that all of them belong to one experiment.

DIR/
├── simulation.json            what is simulated; the same command goes on, any other is refused
├── [seed=S/][load=X/]         a level for each that has several values
│   ├── run.json               and the rest as in `results.run_folder`
│   ├── <policy>.records.jsonl
│   ├── <policy>.summary.json  what the records do not hold
│   └── <policy>.cell.json     what the cell came to; written last, so it says that the cell is done
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from headway.json_file import read_json, write_json
from headway.lab.grid import Cell, Grid
from headway.lab.manifest import Manifest, open_folder
from headway.lab.policy_choice import label
from headway.lab.simulation import CellResult
from headway.results import RecordWriter, RunMeta, load_folder, start_run, write_info
from headway.results.run_folder import RECORDS_SUFFIX, run_file, seed_folder
from headway.whole_file import left_behind, partial_path

MANIFEST = "simulation.json"
CELL_SUFFIX = ".cell.json"
VERSION = 2


@dataclass(frozen=True, slots=True)
class CellFolder:
    """Where the cells of one grid lie."""

    root: Path
    grid: Grid

    def open(self, manifest: Manifest, meta: RunMeta) -> None:
        """Make the folder, or go on with it.

        Raises ConfigError if it holds anything but this very experiment, or cannot be written.
        """
        open_folder(self.root / MANIFEST, {"version": VERSION, **manifest}, "simulation")
        for folder, load in self._runs():
            start_run(folder, msgspec.structs.replace(meta, load=load), goes_on=True)

    def _runs(self) -> list[tuple[Path, float]]:
        grid = self.grid
        return [(self._run(Cell("", load, seed)), load) for seed in grid.seeds for load in grid.loads]

    def _run(self, cell: Cell) -> Path:
        folder = self.root if self.grid.num_seeds == 1 else seed_folder(self.root, cell.seed)
        return folder if len(self.grid.loads) == 1 else load_folder(folder, cell.load)

    def result(self, cell: Cell) -> CellResult | None:
        """What a cell came to; None if it is not done."""
        return read_json(self._file(cell, CELL_SUFFIX), CellResult)

    def records(self, cell: Cell) -> Path:
        """Where the records of a cell are, once it is done."""
        return self._file(cell, RECORDS_SUFFIX)

    def writer(self, cell: Cell) -> RecordWriter:
        """A writer for the records of a cell that is under way; `finish` puts them in their place."""
        return RecordWriter(partial_path(self.records(cell)))

    def finish(self, result: CellResult) -> None:
        """Put what was written in its place: the records and what they lack, then what says that it is done."""
        records = self.records(result.cell)
        partial_path(records).replace(records)
        write_info(self._run(result.cell), label(result.cell.policy), result.info)
        path = self._file(result.cell, CELL_SUFFIX)
        write_json(path, result)

    def discard(self, cell: Cell) -> None:
        """Remove what a cell that did not come to its end has written."""
        partial_path(self.records(cell)).unlink(missing_ok=True)

    def sweep_up(self) -> None:
        """Remove what workers that were killed have left: half-written, or of a cell that was not said to be done.

        Another command may be filling the same folder: what it writes stays.
        """
        for path in left_behind(self.root):
            path.unlink(missing_ok=True)
        for cell in self.grid.cells():
            if not self._file(cell, CELL_SUFFIX).exists():
                self.records(cell).unlink(missing_ok=True)

    def _file(self, cell: Cell, suffix: str) -> Path:
        return run_file(self._run(cell), label(cell.policy), suffix)
