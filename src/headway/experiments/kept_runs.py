"""Simulated runs that are done, in one file: each found by a digest of all that decides it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib.metadata import version
from io import BufferedWriter
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from headway.errors import ConfigError
from headway.experiments.run_cells import in_processes
from headway.whole_file import write_whole


class Digested(Protocol):
    """All that decides a run."""

    def digest(self) -> str:
        """Tells apart any two runs that may differ, in what is asked for, the costs, or the release."""
        ...


FILE = "runs.jsonl"

RunT = TypeVar("RunT", bound=Digested)
ResultT = TypeVar("ResultT")


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
        except msgspec.DecodeError as error:
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
    run_groups([(run,) for run in todo], kept, partial(_each, work), jobs=jobs, tick=tick)


def run_groups(
    groups: Sequence[Sequence[RunT]],
    kept: Kept[RunT, ResultT],
    work: Callable[[Sequence[RunT]], Sequence[ResultT]],
    *,
    jobs: int | None = None,
    tick: Callable[[], None] = lambda: None,
) -> None:
    """The same for runs that are done a group at a time, each group in one process, and kept when all of it is done."""
    jobs = jobs or os.cpu_count() or 1
    do = partial(_with_group, work)
    alone = min(jobs, len(groups)) <= 1
    found = (do(group) for group in groups) if alone else in_processes(do, groups, jobs)
    with kept.adding() as add, closing(found):
        for runs, results in found:
            for run, result in zip(runs, results, strict=True):
                add(run, result)
                tick()


def _each(work: Callable[[RunT], ResultT], runs: Sequence[RunT]) -> list[ResultT]:
    return [work(run) for run in runs]


def _with_group(
    work: Callable[[Sequence[RunT]], Sequence[ResultT]], runs: Sequence[RunT]
) -> tuple[Sequence[RunT], Sequence[ResultT]]:
    return runs, work(runs)


@lru_cache(maxsize=1)
def release() -> str:
    """The version of this package: another one's runs may differ."""
    return version("headway")
