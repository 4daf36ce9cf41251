"""`headway report`: runs on disk, compared in a table, as JSON and as one HTML page."""

from __future__ import annotations

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
from headway.whole_file import write_whole

EPILOG = """Examples:

  headway report out/demo --out out/demo/report.html

  headway report out/monday out/tuesday --json      # runs of two days beside one another

DIR is what --out of `headway bench` or `headway simulate` named: a run, or a sweep over loads and seeds.
"""


def report(
    dirs: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of runs or sweeps to compare.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.html", help="Write the page here.")
    ] = None,
    title: Annotated[str, typer.Option("--title", help="Heading of the page.")] = "Headway report",
    as_json: Annotated[bool, typer.Option("--json", help="Print the summaries as JSON.")] = False,
) -> None:
    """Compare runs: tables on stderr, or the page with --out (its path on stdout); the numbers with --json.

    Of two policies stderr says first, in a sentence, which did better. With --json stdout is the JSON alone.
    """
    runs = _read(dirs)
    parts = sections(runs)
    show_verdicts(parts)
    if out is None:
        show_tables(parts)
    else:
        _write(out, render_html(runs, title=title))
    if as_json:
        typer.echo(to_json(labelled_summaries(parts)))
    elif out is not None:
        typer.echo(out)


def _read(dirs: list[Path]) -> list[Run]:
    if len({folder.resolve() for folder in dirs}) < len(dirs):
        raise ConfigError(f"a folder is given twice in {', '.join(map(str, dirs))}; accepted: each once")
    return [run for folder in dirs for run in read_runs(folder)]


def show_verdicts(parts: list[Section]) -> None:
    """Which of two policies did better, for people: on stderr."""
    for part in parts:
        if part.verdict:
            typer.echo(part.verdict, err=True)


def show_tables(parts: list[Section]) -> None:
    """The tables, for people: on stderr, each with where its numbers come from."""
    console = Console(stderr=True)
    for part in parts:
        load = "" if len(parts) == 1 or part.load is None else f"load {part.load:g}, "
        console.print(f"\n{load}{part.measured_on}", markup=False, highlight=False)
        console.print(terminal_table(part.comparison))


def _write(out: Path, page: str) -> None:
    try:
        write_whole(out, page.encode())
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written ({error.strerror})") from error
