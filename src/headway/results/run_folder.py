"""A run on disk, as every command writes it and `headway report` reads it.

    DIR/
    ├── run.json                   RunMeta: what was run, where, and whether it was measured or simulated
    ├── <policy>.records.jsonl     one Record a line, in the order requests ended
    └── <policy>.summary.json      RunInfo, optional: what the records do not hold

A sweep is a folder of runs, one per load or rate scale: DIR/load=0.8/run.json and so on. Runs or sweeps that were
repeated with several seeds lie one level deeper, in DIR/seed=0 and so on.
In file names a policy is percent-encoded, so that any name is a file name.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import isfinite, nan
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import quote, unquote

import msgspec

from headway.core.record import Record
from headway.errors import ConfigError, RecordError
from headway.json_file import read_json, write_json
from headway.results.metrics import RunInfo
from headway.results.records import RecordWriter, records_so_far, write_records

logger = logging.getLogger(__name__)

META_NAME = "run.json"
RECORDS_SUFFIX = ".records.jsonl"
INFO_SUFFIX = ".summary.json"
LOAD_PREFIX = "load="
SEED_PREFIX = "seed="

_SAFE_IN_NAMES = " =,+()"
_T = TypeVar("_T", bound=msgspec.Struct)


class RunMeta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was run; "" and None mean not stated.

    `load_name` says what `load` is. If `capacity_rps` is stated, `load` is the share of it at which requests came.
    """

    policies: tuple[str, ...] = ()
    measured_on: Literal["real engine", "simulated"] | None = None
    model: str = ""
    trace: str = ""
    command: str = ""
    hardware: str = ""
    versions: dict[str, str] = {}
    load: float | None = None
    load_name: Literal["load", "rate scale"] = "load"
    capacity_rps: float | None = None

    @property
    def offered(self) -> str:
        """The load in words; "" if it is not stated."""
        if self.load is None:
            return ""
        if self.capacity_rps is None:
            return f"{self.load_name} {self.load:g}"
        return f"{self.load:g} of this machine's capacity ({self.load * self.capacity_rps:.3g} requests a second)"


@dataclass(frozen=True, slots=True)
class Run:
    """One run: policy -> its records and its RunInfo, in the order in which the policies ran.

    `folder` is the requested one: runs of one sweep share it.
    """

    folder: Path
    meta: RunMeta
    records: dict[str, list[Record]]
    infos: dict[str, RunInfo]

    @property
    def place(self) -> str:
        """The folder as text."""
        return _as_text(self.folder)


def _as_text(path: Path | str) -> str:
    """A path as text, although its bytes need not be valid text."""
    return os.fsencode(path).decode(errors="backslashreplace")


def load_folder(folder: Path, load: float) -> Path:
    """The folder of the run at one load of a sweep."""
    return folder / f"{LOAD_PREFIX}{load:g}"


def seed_folder(folder: Path, seed: int) -> Path:
    """The folder of the runs with one seed, among several."""
    return folder / f"{SEED_PREFIX}{seed}"


def start_run(folder: Path, meta: RunMeta, *, goes_on: bool = False) -> None:
    """Make the folder and write what is about to be run, before the first request.

    Raises ConfigError if the folder has a run already, or records alone (results are never overwritten; only a run that
    `goes_on` may find its own); if it has a sweep, beside which the run would not be read; if a policy is repeated or
    has no name; or if the folder cannot be written.
    """
    if len(set(meta.policies)) < len(meta.policies) or not all(meta.policies):
        raise ConfigError(f"policies are {', '.join(meta.policies)!r}; accepted: different names, none empty")
    if not goes_on and (has_run(folder) or _has_records(folder)):
        raise ConfigError(f"{folder} holds a run already; give another folder, or remove this one first")
    if any(chain(folder.glob(f"{SEED_PREFIX}*"), folder.glob(f"{LOAD_PREFIX}*"))):
        raise ConfigError(f"{folder} holds a sweep; accepted: another folder")
    _write_json(folder / META_NAME, meta)


def has_run(folder: Path) -> bool:
    """Whether a run was started there, and not forgotten."""
    return (folder / META_NAME).exists()


def forget_run_without_records(folder: Path) -> None:
    """Remove what `start_run` wrote if there are no records, so that another try overwrites nothing."""
    if not _has_records(folder):
        (folder / META_NAME).unlink(missing_ok=True)


def _has_records(folder: Path) -> bool:
    return any(path.stat().st_size for path in folder.glob(f"*{RECORDS_SUFFIX}"))


def record_writer(folder: Path, policy: str) -> RecordWriter:
    """A writer for one policy's records in a folder."""
    return RecordWriter(run_file(folder, policy, RECORDS_SUFFIX))


def replace_records(folder: Path, policy: str, records: Iterable[Record]) -> None:
    """Replace one policy's records, all or none. Raises RecordError as `write_records` does."""
    write_records(run_file(folder, policy, RECORDS_SUFFIX), records)


def write_info(folder: Path, policy: str, info: RunInfo) -> None:
    """Write what one policy's records lack. Raises ConfigError if the folder cannot be written."""
    _write_json(run_file(folder, policy, INFO_SUFFIX), info)


def read_run(folder: Path) -> Run:
    """Read one run. A policy in run.json without records was not reached: it is left out, with a warning.

    Without run.json the folder is read as records alone, with policies in the order of their names. Raises RecordError
    if the folder is missing, has no records, or has a file that cannot be read.
    """
    _require_folder(folder)
    meta = read_json(folder / META_NAME, RunMeta) or RunMeta()
    found = {
        unquote(_as_text(path.name).removesuffix(RECORDS_SUFFIX)): records
        for path in folder.glob(f"*{RECORDS_SUFFIX}")
        if (records := records_so_far(path))
    }
    if not found:
        raise RecordError(f"{folder}: no records in it; accepted: a folder of <policy>{RECORDS_SUFFIX} files")
    if missing := [policy for policy in meta.policies if policy not in found]:
        logger.warning("%s: no records of %s; left out", folder, ", ".join(missing))
    planned = [policy for policy in meta.policies if policy in found]
    policies = [*planned, *sorted(found.keys() - set(planned))]
    return Run(
        folder=folder,
        meta=meta,
        records={policy: found[policy] for policy in policies},
        infos={
            policy: read_json(run_file(folder, policy, INFO_SUFFIX), RunInfo) or RunInfo()
            for policy in policies
        },
    )


def read_runs(folder: Path) -> list[Run]:
    """The runs of a folder: a single one, or those of a sweep in order of load, seed by seed.

    A run of a sweep has the load in its folder's name, and the sweep's own folder (or that of its seed) as its
    `folder`. A run that was not reached before the sweep was stopped is left out, with a warning. Raises RecordError as
    `read_run` does, and if a name has no load or seed.
    """
    _require_folder(folder)
    seeds = sorted((_number_in(path, SEED_PREFIX), path) for path in folder.glob(f"{SEED_PREFIX}*"))
    if seeds:
        return [run for _, path in _reached(seeds) for run in read_runs(path)]
    loads = sorted(
        (_number_in(path, LOAD_PREFIX), path) for path in folder.glob(f"{LOAD_PREFIX}*") if path.is_dir()
    )
    if not loads:
        return [read_run(folder)]
    runs = [(load, read_run(path)) for load, path in _reached(loads)]
    return [
        replace(run, folder=folder, meta=msgspec.structs.replace(run.meta, load=load)) for load, run in runs
    ]


def _reached(parts: Sequence[tuple[float, Path]]) -> Sequence[tuple[float, Path]]:
    """The parts of a sweep that have records; all if none has, so that reading them raises the error."""
    reached = [
        part for part in parts if any(file.stat().st_size for file in part[1].rglob(f"*{RECORDS_SUFFIX}"))
    ]
    for part in parts:
        if reached and part not in reached:
            logger.warning("%s: no records; left out", part[1])
    return reached or parts


def run_file(folder: Path, policy: str, suffix: str) -> Path:
    """The path of a policy's file in the folder of its run."""
    return folder / f"{quote(policy, safe=_SAFE_IN_NAMES)}{suffix}"


def _require_folder(folder: Path) -> None:
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise RecordError(f"{folder} {what}; accepted: a folder that a run was written to")


def _number_in(path: Path, prefix: str) -> float:
    try:
        number = float(path.name.removeprefix(prefix))
    except ValueError:
        number = nan
    if not isfinite(number):
        raise RecordError(f"{path}: no {prefix.removesuffix('=')} in its name; accepted: {prefix}<number>")
    return number


def _write_json(path: Path, value: msgspec.Struct) -> None:
    try:
        write_json(path, value)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error
