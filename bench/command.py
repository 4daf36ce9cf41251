"""Command lines of the benches: common options, the choice of presets, and progress messages."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, RawTextHelpFormatter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from headway.errors import HeadwayError
from headway.lab.processes import in_processes
from headway.policies.eviction.proactive import Proactive
from headway.policies.presets import Preset, build_policy, known_presets

_Run = TypeVar("_Run", bound=Hashable)
_Found = TypeVar("_Found")


def say(line: str) -> None:
    """Write a line to stderr at once."""
    print(line, file=sys.stderr, flush=True)


def command_line(described: str | None) -> ArgumentParser:
    """A bench's parser, with its description and `--json`. From now on a HeadwayError ends with one line on stderr and
    exit status 2.
    """
    sys.excepthook = _tell
    parser = ArgumentParser(description=described, formatter_class=RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout (the default output)")
    return parser


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, HeadwayError):
        say(f"error: {error}")
        sys.exit(2)
    sys.__excepthook__(kind, error, trace)


def out_option(parser: ArgumentParser, what: str = "what is measured") -> None:
    """Add `--out`, a folder in which an interrupted run continues."""
    parser.add_argument("--out", type=Path, required=True, help=f"folder for {what}; resumed if there")


def markdown_option(parser: ArgumentParser, told: str = "a table in place of JSON") -> None:
    """Add `--markdown`."""
    parser.add_argument("--markdown", action="store_true", help=told)


def jobs_option(parser: ArgumentParser) -> None:
    """Add `--jobs`, the number of simulating processes."""
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)"
    )


def stream_options(
    parser: ArgumentParser,
    *,
    seconds: float | None = None,
    seeds: int | None = None,
    loads: Sequence[float] | None = None,
    profile_s: float | None = None,
) -> None:
    """Add those of `--seconds`, `--seeds`, `--load` and `--profile-seconds` for which a default is given."""
    add = parser.add_argument
    if seconds is not None:
        add("--seconds", type=float, default=seconds, help=f"of arrivals a run (default {seconds:g})")
    if seeds is not None:
        add("--seeds", type=int, default=seeds, help=f"streams of each load (default {seeds})")
    if loads is not None:
        add("--load", type=float, action="append", help=f"of capacity (default {loads})")
    if profile_s is not None:
        told = f"for the simulator's costs (default {profile_s:g})"
        add("--profile-seconds", type=float, default=profile_s, help=told)


def preset_option(parser: ArgumentParser, flag: str, explained: str) -> None:
    """Add a repeatable option that names presets."""
    parser.add_argument(
        flag, action="append", choices=list(known_presets()), metavar="PRESET", help=explained
    )


def pauses(preset: Preset) -> bool:
    """Whether the preset lets more requests be resident than run, so that a batch narrower than the slots matters."""
    return preset.batching.partition(":")[0] == "top-jobs"


def moves_ahead(preset: Preset) -> bool:
    """Whether the preset copies KV to the host and back ahead of need."""
    eviction = build_policy(preset).eviction
    return isinstance(eviction, Proactive) and eviction.ahead and not eviction.drop


def all_done(
    work: Callable[[_Run], _Found],
    todo: Sequence[_Run],
    jobs: int,
    told: Callable[[_Run, _Found], str] | None = None,
) -> dict[_Run, _Found]:
    """The result of `work` (a module-level function) for each run, in up to `jobs` processes, with progress
    messages.
    """
    found: dict[_Run, _Found] = {}
    for run, result in in_processes(partial(_named, work), todo, jobs):
        found[run] = result
        say(f"{len(found)} of {len(todo)}: {run if told is None else told(run, result)}")
    return {run: found[run] for run in todo}


def _named(work: Callable[[_Run], _Found], run: _Run) -> tuple[_Run, _Found]:
    return run, work(run)
