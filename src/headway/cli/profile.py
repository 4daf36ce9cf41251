"""`headway profile`: what a model costs on this machine, measured on the real engine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.errors import ConfigError

if TYPE_CHECKING:
    from headway.engine.profile import Measurements, ProfilePlan, Tell
    from headway.engine.profile_result import ProfileResult

EPILOG = """Examples:

  headway profile --model demo --out demo.json

  headway profile --model Qwen/Qwen3-8B --out h200-qwen3-8b.json -- --max-num-seqs 256

  headway profile --model ./model --out cost.json --quick --json

Steps of every kind are timed on the engine `headway serve` would start with the same flags: prompts alone,
after a context, decodes from one request to the widest batch, and both mixed; then copies of KV blocks both
ways. Ctrl-C writes what was measured, if that is enough. Keep the machine otherwise idle.
"""

INTERRUPTED = 130


def profile(
    model: Annotated[str, typer.Option(metavar="M", help="`demo`, a directory, or a hub name.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The cost file to write.")],
    vllm_flags: Annotated[
        list[str] | None, typer.Argument(metavar="[-- VLLM_FLAGS]...", help="vLLM's own flags, after `--`.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S", help="Time for measuring steps, after the start (60); one round is always finished."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="12 seconds in place of 60.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
    seed: Annotated[int, typer.Option(help="Decides the prompts and the order of the steps.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as one object on stdout.")] = False,
) -> None:
    """Measure what a model costs on this machine and write a cost file that other commands read."""
    _check_target(out, force)
    plan = _plan(seconds, quick, seed)
    with _stdout_for_data():
        measured, interrupted = _measure(model, vllm_flags or [], plan)
        result = _conclude(measured, model, seed, interrupted)
        if result is not None:
            _write(out, result, interrupted)
    if result is not None:
        if as_json:
            import json

            typer.echo(json.dumps({**result.to_dict(), "file": str(out), "interrupted": interrupted}))
        _show(result)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _check_target(out: Path, force: bool) -> None:
    """Raise ConfigError before anything starts if the file could not be written in the end."""
    if out.is_dir():
        raise ConfigError(f"--out {out} is a directory; accepted: a file")
    if out.exists() and not force:
        raise ConfigError(f"--out {out} exists; accepted: a new file, or --force to replace it")
    for parent in out.absolute().parents:
        if parent.exists():
            if not parent.is_dir() or not os.access(parent, os.W_OK):
                raise ConfigError(f"--out {out}: {parent} is not a folder that can be written to")
            return


def _plan(seconds: float | None, quick: bool, seed: int) -> ProfilePlan:
    from headway.engine.profile import DEFAULT_SECONDS, QUICK_SECONDS, ProfilePlan

    if quick and seconds is not None:
        raise ConfigError("--quick and --seconds are given; accepted: one of them")
    default = QUICK_SECONDS if quick else DEFAULT_SECONDS
    return ProfilePlan(seconds=default if seconds is None else seconds, seed=seed)


@contextmanager
def _stdout_for_data() -> Iterator[None]:
    """Send to stderr what vLLM and its workers print meanwhile."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _measure(model: str, vllm_flags: list[str], plan: ProfilePlan) -> tuple[Measurements | None, bool]:
    """What was measured, and whether it was interrupted; None if there is nothing yet."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    measured: Measurements | None = None
    try:
        from headway.engine.profile import Measurements, measure
        from headway.engine.stepped_engine import SteppedEngine

        typer.echo("starting vLLM", err=True)
        engine = SteppedEngine(model, vllm_flags)
        try:
            measured = Measurements(engine.sizes)
            typer.echo(f"measuring steps for {plan.seconds:g} s; Ctrl-C ends it early", err=True)
            with _progress() as tell:
                measure(engine, plan, measured, tell)
        finally:
            engine.close()
    except KeyboardInterrupt:
        return measured, True
    return measured, False


def _conclude(
    measured: Measurements | None, model: str, seed: int, interrupted: bool
) -> ProfileResult | None:
    """The result; None, saying why, if an interruption left too little."""
    from datetime import date

    from headway.engine.machine import machine_name, vllm_version
    from headway.engine.profile_result import Identity, conclude

    missing = ["everything"] if measured is None else measured.missing()
    if interrupted and missing:
        typer.echo(f"interrupted, nothing written; still missing: {', '.join(missing)}", err=True)
    if measured is None or (interrupted and missing):
        return None
    identity = Identity(
        machine=machine_name(),
        model=model,
        vllm_version=vllm_version(),
        measured_on=date.today().isoformat(),
    )
    return conclude(measured, identity, seed)


def _write(out: Path, result: ProfileResult, interrupted: bool) -> None:
    from headway.predict.cost_file import write_cost_file

    write_cost_file(out, result.cost)
    how = "interrupted, but enough was measured: " if interrupted else ""
    typer.echo(f"{how}wrote {out} ({result.cost.step.num_rows} steps)", err=True)


@contextmanager
def _progress() -> Iterator[Tell]:
    """A bar on stderr, if that is a terminal, moved by what is told."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda share, what: progress.update(task, completed=share, description=what)


def _show(result: ProfileResult) -> None:
    """The errors by kind of step, the copies and the memory, for people."""
    from rich.console import Console
    from rich.table import Table

    cost = result.cost
    table = Table("steps", "unseen", "median error", "p90 error", title=f"{cost.model} on {cost.machine}")
    for kind, errors in result.errors.items():
        shown = [
            f"{error:.1%}" if errors.num_rows else "-" for error in (errors.median_error, errors.p90_error)
        ]
        table.add_row(kind, str(errors.num_rows), *shown)
    console = Console(stderr=True)
    console.print(table)
    for way, law in (("to host", cost.to_host), ("to device", cost.to_device)):
        console.print(f"copies {way}: {law.start_s * 1e6:.0f} µs + {law.bytes_per_s / 1e9:.2f} GB/s")
    console.print(
        f"KV cache: {cost.kv_bytes_per_token:,} bytes a token, room for {cost.kv_capacity_tokens:,} tokens "
        f"in blocks of {cost.block_size}"
    )
