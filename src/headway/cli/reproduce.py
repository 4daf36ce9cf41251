"""`headway reproduce`: repeat a paper's experiments and compare the figures."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli import EXIT_INTERRUPTED
from headway.cli.output import counting, kept_or_temporary, show, stdout_for_data
from headway.errors import ConfigError
from headway.setting import Setting, Shown

if TYPE_CHECKING:
    from headway.lab.papers import Paper, PaperRequest
    from headway.results.study import Study

EPILOG = """Examples:

  headway reproduce adaptivellm --quick --out out/adaptivellm      # under four minutes on two cores

  headway reproduce adaptivellm --out out/adaptivellm              # all of it; goes on with what is there

  headway reproduce fastserve --quick --json                       # the same for FastServe

  headway reproduce magnus --quick --data ../shared/data --json    # Magnus, on text pairs of its eight tasks

  headway reproduce ascendra --quick --json                        # Ascendra: pools of instances against vLLM's

  headway reproduce all --quick --json

What --quick runs is fixed. Of adaptivellm: one seed; Table 3 whole; Fig. 3 for OPT-13B with Chatbot and Summary at 16,
64 and 256 tokens, Fig. 4 and what changes with one thing changed for the same two; predictor errors of one small model.
Of fastserve: one seed; GPT-175B on 16 GPUs at six loads, CV 1 and 8, theta 0.7, 1.1 and 1.5, and four reasons; the
ablations at four loads, the same CV and theta, and half of the KV. Of magnus: one seed; every policy at loads 0.8, 1.5
and 4; its
threshold swept at load 4; the toy. Of ascendra: one seed; Mistral-7B and Qwen-14B with ShareGPT at seven rates; for the
first also overload at 1.0 and 1.5 of capacity, targets at three factors, ablations at two rates. Without --quick each
takes up to half an hour on two cores.

Needs no download and no data: length laws ship with the package, and so do the demo model's tasks with the lengths of
its own answers, which magnus is run on where the shared text pairs are not there (--data). Magnus learns lengths with
LightGBM; magnus and ascendra need headway[serve] even where all is simulated. Tables say whether they were simulated or
measured on a real engine, and on what. DIR gets tables (CSV, Markdown), charts (SVG), the JSON and one HTML page. What
is done is kept there: interrupted, the same command goes on.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproduceFlags:
    """Which paper, how much of it, and where the results are kept."""

    paper: Annotated[
        str,
        Setting("adaptivellm, fastserve, magnus, ascendra, or all.", "PAPER|all", shown=Shown(argument=True)),
    ]
    out: Annotated[Path | None, Setting("Keep runs, tables and plots; resumed if there.", "DIR")] = None
    quick: Annotated[bool, Setting("A fixed part with fewer seeds; the same workloads.")] = False
    data: Annotated[
        Path | None,
        Setting("Shared data for magnus (default: ../shared/data, if it is there).", "DIR"),
    ] = None
    jobs: Annotated[int | None, Setting("Processes (default: one a CPU).", "N")] = None
    as_json: Annotated[bool, Setting("Print one object on stdout.", shown=Shown(flag="--json"))] = False


def reproduce(flags: ReproduceFlags) -> None:
    """Repeat a paper's experiments and set its numbers beside ours."""
    from headway.lab.papers import ALL, PaperRequest, papers

    out, jobs = flags.out, flags.jobs
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs is {jobs}; accepted: 1 or more")
    wanted = papers(flags.paper)
    studies: dict[str, Study] = {}
    with kept_or_temporary(out) as root:
        for name, found in wanted.items():
            folder = root / name if flags.paper == ALL else root
            request = PaperRequest(
                root=folder, jobs=jobs or os.cpu_count() or 1, quick=flags.quick, data=flags.data
            )
            studies[name] = _run(name, found, request, kept=out is not None)
            if out is not None:
                _write(studies[name], folder)
    if flags.as_json:
        _print_json(studies if flags.paper == ALL else studies[flags.paper])


def _run(name: str, paper: Paper, request: PaperRequest, *, kept: bool) -> Study:
    from headway.results.study import terminal_study

    size = paper.size(request)
    there = f", {size.kept:,} of them done already" if size.kept else ""
    processes = "1 process" if request.jobs == 1 else f"{request.jobs} processes"
    _tell(f"{name}: {size.runs:,} simulated runs{there}; about {_duration(size.seconds)} in {processes}")
    try:
        with stdout_for_data(), counting("runs", size.runs - size.kept) as tick:
            study = paper.reproduce(request, lambda: tick(1), _tell)
    except KeyboardInterrupt:
        where = f"what is done is kept in {request.root}; the same command goes on"
        _tell(f"interrupted: {where if kept else 'nothing is kept; give --out DIR to be able to go on'}")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    show(terminal_study(study))
    return study


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min"


def _write(study: Study, folder: Path) -> None:
    from headway.results.study import write_study

    page = write_study(study, folder)
    _tell(f"wrote {folder}; open {page}")


def _print_json(found: Study | dict[str, Study]) -> None:
    from headway.results.study import json_text

    plain = {name: study.data for name, study in found.items()} if isinstance(found, dict) else found.data
    typer.echo(json_text(plain), nl=False)


def _tell(line: str) -> None:
    typer.echo(line, err=True)
