"""`headway report`: runs on disk, compared in a table, as JSON and as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headway.errors import ConfigError
from headway.results import (
    Run,
    Section,
    labelled_summaries,
    read_runs,
    render_html,
    sections,
    terminal_table,
    to_json,
)
from headway.setting import Setting, Shown
from headway.whole_file import write_whole

EPILOG = """Examples:

  headway report out/demo --out out/demo/report.html

  headway report out/monday out/tuesday --json      # runs of two days beside one another

DIR is what --out of `headway bench` or `headway simulate` named: a run, or a sweep over loads and seeds.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFlags:
    """Which runs to compare, and where the page goes."""

    dirs: Annotated[
        tuple[Path, ...],
        Setting("Folders of runs or sweeps to compare.", "DIR...", shown=Shown(argument=True)),
    ]
    out: Annotated[Path | None, Setting("File for the page.", "FILE.html")] = None
    title: Annotated[str, Setting("Heading of the page.")] = "Headway report"
    as_json: Annotated[bool, Setting("Print the summaries as JSON.", shown=Shown(flag="--json"))] = False


def report(flags: ReportFlags) -> None:
    """Compare runs: tables on stderr, or a page with --out (its path on stdout), or numbers with --json.

    If there are two policies, stderr first says in a sentence which did better. With --json stdout has only JSON.
    """
    runs = _read(flags.dirs)
    parts = sections(runs)
    show_verdicts(parts)
    if flags.out is None:
        show_tables(parts)
    else:
        _write(flags.out, render_html(runs, title=flags.title))
    if flags.as_json:
        typer.echo(to_json(labelled_summaries(parts)))
    elif flags.out is not None:
        typer.echo(flags.out)


def _read(dirs: Sequence[Path]) -> list[Run]:
    if len({folder.resolve() for folder in dirs}) < len(dirs):
        raise ConfigError(f"a folder is given twice in {', '.join(map(str, dirs))}; name each once")
    return [run for folder in dirs for run in read_runs(folder)]


def show_verdicts(parts: list[Section]) -> None:
    """Print on stderr which of two policies did better."""
    for part in parts:
        if part.verdict:
            typer.echo(part.verdict, err=True)


def show_tables(parts: list[Section]) -> None:
    """Print the tables on stderr, each with the source of its numbers."""
    console = Console(stderr=True)
    for part in parts:
        load = "" if len(parts) == 1 or part.load is None else f"{part.load_name} {part.load:g}, "
        console.print(f"\n{load}{part.measured_on}", markup=False, highlight=False)
        console.print(terminal_table(part.comparison))


def _write(out: Path, page: str) -> None:
    try:
        write_whole(out, page.encode())
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written ({error.strerror})") from error
