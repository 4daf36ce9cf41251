"""Keeps finished simulated runs in one file, each under a digest of everything that determines its result."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib.metadata import version
from io import BufferedWriter
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from headway.errors import ConfigError
from headway.json_file import write_json
from headway.lab.processes import in_processes
from headway.whole_file import write_whole


class Digested(Protocol):
    """Everything that determines a run."""

    def digest(self) -> str:
        """A digest that differs for any two runs that may differ, by their settings, costs, or release."""
        ...


FILE = "runs.jsonl"

RunT = TypeVar("RunT", bound=Digested)
ResultT = TypeVar("ResultT")
_Run = TypeVar("_Run")
"""A run of any kind, kept by a digest or otherwise."""


class _Line(msgspec.Struct, Generic[ResultT], frozen=True):
    """One line of the file."""

    digest: str
    result: ResultT


@dataclass(slots=True)
class Kept(Generic[RunT, ResultT]):
    """Finished runs, one line each, written as soon as they end, so that a kill loses none.

    One file serves any number of studies with results of one kind.
    """

    root: Path
    file: str = FILE
    done: dict[str, ResultT] = field(default_factory=dict)

    def load(self, kind: type[ResultT]) -> None:
        """Read the file; a last line that a kill cut short is dropped.

        Raises ConfigError if the file has anything else or cannot be read.
        """
        path = self.root / self.file
        if not path.exists():
            return
        try:
            content = path.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            for line in whole.splitlines():
                found = msgspec.json.decode(line, type=_Line[kind])  # type: ignore[valid-type]
                self.done[found.digest] = found.result
            if whole != content:
                write_whole(path, whole)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{path} holds something else than runs ({error}); give another folder"
            ) from error

    def result(self, run: RunT) -> ResultT | None:
        """The result of a run; None if it is not done."""
        return self.done.get(run.digest())

    @contextmanager
    def adding(self) -> Iterator[Callable[[RunT, ResultT], None]]:
        """Yield a function that stores a finished run. Raises ConfigError if the folder cannot be written."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            file: BufferedWriter = (self.root / self.file).open("ab")
        except OSError as error:
            raise ConfigError(f"{self.root}: cannot be written ({error.strerror})") from error

        def add(run: RunT, result: ResultT) -> None:
            digest = run.digest()
            file.write(msgspec.json.encode(_Line(digest, result)) + b"\n")
            file.flush()
            self.done[digest] = result

        with file:
            yield add


def run_kept(
    runs: Sequence[RunT],
    kept: Kept[RunT, ResultT],
    work: Callable[[RunT], ResultT],
    *,
    jobs: int | None = None,
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Run what is not kept yet, in up to `jobs` processes (None: one a core), and keep the results.

    `work` is a module-level function. `tick` is called for each kept run. KeyboardInterrupt passes through after all
    processes have ended, with finished runs kept. The first run that raises ends the others.
    """
    todo = [run for run in runs if kept.result(run) is None]
    run_groups([(run,) for run in todo], kept, partial(only, work), jobs=jobs, tick=tick)


def run_groups(
    groups: Sequence[Sequence[RunT]],
    kept: Kept[RunT, ResultT],
    work: Callable[[Sequence[RunT], Sequence[ResultT]], ResultT],
    *,
    jobs: int | None = None,
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Run groups of runs; within a group they run in order, since the result of one may answer later ones.

    `work` gets a group and the results of its first runs, and returns the result of the next.
    """
    with kept.adding() as add, closing(each_done(groups, work, jobs)) as found:
        for run, result in found:
            add(run, result)
            tick()


def is_alone(groups: Sequence[Sequence[_Run]], jobs: int | None) -> bool:
    """Whether this process does the runs itself: with one job, or one group."""
    return min(jobs or os.cpu_count() or 1, len(groups)) <= 1


def each_done(
    groups: Sequence[Sequence[_Run]],
    work: Callable[[Sequence[_Run], Sequence[ResultT]], ResultT],
    jobs: int | None,
) -> Generator[tuple[_Run, ResultT], None, None]:
    """Yield each run with its result as it finishes, here or in up to `jobs` processes."""
    do = partial(_one_more, work)
    begun: list[_Begun[_Run, ResultT]] = [(group, ()) for group in groups]
    if is_alone(groups, jobs):
        found = _here(do, begun)
    else:
        found = in_processes(do, begun, jobs or os.cpu_count() or 1, then=_unless_done)
    with closing(found):
        for runs, results in found:
            yield runs[len(results) - 1], results[-1]


_Begun = tuple[Sequence[_Run], Sequence[ResultT]]
"""A group, and the results of its first runs."""


def only(work: Callable[[_Run], ResultT], runs: Sequence[_Run], results: Sequence[ResultT]) -> ResultT:
    """The next run's result in groups whose runs are independent."""
    return work(runs[len(results)])


def _one_more(
    work: Callable[[Sequence[_Run], Sequence[ResultT]], ResultT], begun: _Begun[_Run, ResultT]
) -> _Begun[_Run, ResultT]:
    runs, results = begun
    return runs, (*results, work(runs, results))


def _unless_done(begun: _Begun[_Run, ResultT]) -> _Begun[_Run, ResultT] | None:
    runs, results = begun
    return begun if len(results) < len(runs) else None


def _here(
    do: Callable[[_Begun[_Run, ResultT]], _Begun[_Run, ResultT]], groups: Sequence[_Begun[_Run, ResultT]]
) -> Generator[_Begun[_Run, ResultT], None, None]:
    for group in groups:
        begun = _unless_done(group)
        while begun is not None:
            done = do(begun)
            yield done
            begun = _unless_done(done)


@lru_cache(maxsize=1)
def release() -> str:
    """This package's version, since results may differ between versions."""
    return version("headway")


Manifest = Mapping[str, object]
"""Everything that determines the results, as plain data."""


def open_folder(path: Path, wanted: Manifest, kind: str) -> None:
    """Make the folder of a manifest (the file `path`), or continue in it.

    Raises ConfigError if it has anything except the very same `kind` of experiment, or cannot be written.
    """
    folder = path.parent
    try:
        if path.exists():
            _check_same(path, wanted, kind)
        elif folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty; accepted: a new folder, or one to go on with")
        write_json(path, wanted)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from error


def _check_same(path: Path, wanted: Manifest, kind: str) -> None:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); give another folder") from error
    plain = msgspec.json.decode(msgspec.json.encode(wanted), type=dict[str, object])
    differing = sorted(key for key in found.keys() | plain.keys() if found.get(key) != plain.get(key))
    if differing:
        shown = "; ".join(f"{key} was {found.get(key)}, now {plain.get(key)}" for key in differing[:3])
        raise ConfigError(f"{path.parent} holds another {kind} ({shown}); give another folder")
