"""Where `bench/fidelity.py` keeps what was measured, so that a command that was stopped goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from bench.fidelity_cells import Run, run_of
from bench.fidelity_setup import RealRun, RealSide, Setup
from bench.fidelity_steps import Row
from headway.core.record import Record
from headway.engine.profiling.profile import Measurements
from headway.errors import ConfigError
from headway.lab.real_engine import ServedStep
from headway.results import read_records
from headway.results.records import write_records
from headway.whole_file import write_whole


@dataclass(frozen=True, slots=True)
class Folder:
    """All that is written: `real.json` first, then profile and runs, each as it ends."""

    path: Path

    @property
    def cost_file(self) -> Path:
        """The costs that the profile came to."""
        return self.path / "cost.json"

    # ---- the real side ---------------------------------------------------------------------------------

    @property
    def _side_file(self) -> Path:
        return self.path / "real.json"

    def side(self) -> RealSide | None:
        """As it was kept; None in an empty folder."""
        if not self._side_file.is_file():
            return None
        return msgspec.json.decode(self._side_file.read_bytes(), type=RealSide)

    def begun(self, setup: Setup, runs: int, run_s: float) -> RealSide | None:
        """The side of a command that is to go on, its policies beside those before; None for one that begins.

        Raises ConfigError if the folder is of another kind of runs.
        """
        found = self.side()
        if found is None:
            return None
        others = dict.fromkeys((*found.setup.policies, *setup.policies))
        wanted = msgspec.structs.replace(setup, policies=found.setup.policies)
        if (wanted, runs, run_s) != (found.setup, found.runs, found.run_s):
            raise ConfigError(
                f"{self.path} holds other runs ({found.runs} of {found.run_s:g} s a cell, loads "
                f"{', '.join(f'{load:g}' for load in found.setup.loads)}); accepted: the same, or another folder"
            )
        return msgspec.structs.replace(
            found, setup=msgspec.structs.replace(found.setup, policies=tuple(others))
        )

    def keep_side(self, side: RealSide) -> None:
        """Before the first run."""
        write_whole(self._side_file, msgspec.json.encode(side))

    # ---- the profile -----------------------------------------------------------------------------------

    @property
    def _profile_file(self) -> Path:
        return self.path / "profile.json"

    def measurements(self) -> Measurements | None:
        """What the profile has measured so far."""
        if not self._profile_file.is_file():
            return None
        return msgspec.json.decode(self._profile_file.read_bytes(), type=Measurements)

    def keep_measurements(self, measured: Measurements) -> None:
        """As far as it has come."""
        write_whole(self._profile_file, msgspec.json.encode(measured))

    # ---- runs ------------------------------------------------------------------------------------------

    def _records_file(self, name: str) -> Path:
        return self.path / f"{name}.jsonl"

    def _steps_file(self, run: RealRun) -> Path:
        return self.path / f"{run.name}-steps.json"

    def has(self, run: RealRun) -> bool:
        """Whether a real run has ended."""
        return self._records_file(run.name).is_file()

    def keep_real(self, run: RealRun, records: Sequence[Record], steps: Sequence[ServedStep]) -> None:
        """A real run has ended; its records, which say so, come last."""
        write_whole(self._steps_file(run), json.dumps([_row(step) for step in steps]).encode())
        self.keep(run.name, records)

    def keep(self, name: str, records: Sequence[Record]) -> None:
        """The records of a run, real or simulated."""
        write_records(self._records_file(name), records)

    def steps(self, run: RealRun) -> list[Row]:
        """The steps of a real run."""
        found: list[Row] = json.loads(self._steps_file(run).read_bytes())
        return found

    def real(self, run: RealRun) -> Run:
        """A real run."""
        return run_of(read_records(self._records_file(run.name)), len(self.steps(run)))


def _row(served: ServedStep) -> Row:
    step = served.step
    return {"shape": asdict(step.shape), "seconds": step.seconds - step.copy_wait_s, "gap_s": served.gap_s}
