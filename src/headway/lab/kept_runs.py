"""Simulated runs that are done, in one file: each found by a digest of all that decides it."""

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
    """All that decides a run."""

    def digest(self) -> str:
        """Tells apart any two runs that may differ, in what is asked for, the costs, or the release."""
        ...


FILE = "runs.jsonl"

RunT = TypeVar("RunT", bound=Digested)
ResultT = TypeVar("ResultT")
_Run = TypeVar("_Run")
"""A run of any kind, kept by a digest or otherwise."""


class _Line(msgspec.Struct, Generic[ResultT], frozen=True):
    """A line of the file."""

    digest: str
    result: ResultT


@dataclass(slots=True)
class Kept(Generic[RunT, ResultT]):
    """Runs that are done, a line each, written as it ends, so that a kill loses none of them.

    The same file serves any number of studies with results of one kind.
    """

    root: Path
    file: str = FILE
    done: dict[str, ResultT] = field(default_factory=dict)

    def load(self, kind: type[ResultT]) -> None:
        """Take in what the file holds; a last line cut short by a kill is dropped.

        Raises ConfigError if the file holds anything else or cannot be read.
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
        """What a run came to; None if it is not done."""
        return self.done.get(run.digest())

    @contextmanager
    def adding(self) -> Iterator[Callable[[RunT, ResultT], None]]:
        """A function that keeps one run more. Raises ConfigError if the folder cannot be written."""
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
    """Do the runs that are not kept yet, in up to `jobs` processes (None: one a core), and keep them.

    `work` is a function of a module. `tick` hears of each as it is kept. KeyboardInterrupt passes through with all
    processes ended and what is done kept. The first run that raises ends the others.
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
    """Run groups of runs; in a group one is done after another, since each may answer those behind it.

    `work` is given a group and what the first of its runs came to, and says what the next one does.
    """
    with kept.adding() as add, closing(each_done(groups, work, jobs)) as found:
        for run, result in found:
            add(run, result)
            tick()


def is_alone(groups: Sequence[Sequence[_Run]], jobs: int | None) -> bool:
    """Whether this process does the runs itself: where there is but one job, or one group."""
    return min(jobs or os.cpu_count() or 1, len(groups)) <= 1


def each_done(
    groups: Sequence[Sequence[_Run]],
    work: Callable[[Sequence[_Run], Sequence[ResultT]], ResultT],
    jobs: int | None,
) -> Generator[tuple[_Run, ResultT], None, None]:
    """Each run and what it came to, as it is done, here or in up to `jobs` processes."""
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
"""A group, and what the first of its runs came to."""


def only(work: Callable[[_Run], ResultT], runs: Sequence[_Run], results: Sequence[ResultT]) -> ResultT:
    """What the next run of a group comes to where none answers another."""
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
    """The version of this package: another one's runs may differ."""
    return version("headway")


Manifest = Mapping[str, object]
"""All that decides the results, as plain data."""


def open_folder(path: Path, wanted: Manifest, kind: str) -> None:
    """Make the folder of a manifest, the file `path`, or go on with it.

    Raises ConfigError if it holds anything but the very same `kind` of experiment, or cannot be written.
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
