"""`headway profile`: what a model costs on this machine, measured on the real engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli import EXIT_INTERRUPTED
from headway.cli.measuring import check_target, progress, stdout_for_data
from headway.cli.profile_recompute import RecomputeAsk, profile_recompute
from headway.errors import ConfigError

if TYPE_CHECKING:
    from headway.engine.profiling.profile import Measurements, ProfilePlan
    from headway.engine.profiling.result import ProfileResult

EPILOG = """Examples:

  headway profile --model demo --out demo.json

  headway profile --model Qwen/Qwen3-8B --out h200-qwen3-8b.json -- --max-num-seqs 256

  headway profile --model ./model --out cost.json --quick --json

  headway profile --recompute-grid --out rows.json

  headway profile --recompute-grid --from rows.json --json

Steps of every kind are timed on the engine `headway serve` would start with the same flags: prompts alone,
after a context, decodes from one request to the widest batch, and both mixed; then copies of KV blocks both
ways. Ctrl-C writes what was measured, if that is enough. Keep the machine otherwise idle.

With --recompute-grid: prefills of six random models, 3 depths x 2 widths, made on the spot (seven minutes). From
these AdaptiveLLM's recompute analyser is fitted, 8 regressors on polynomials of degree 1 to 10, and compared with
Headway's own step times on configurations, and on a whole shape, that nothing was fitted to (minutes more).
Needs the extra `fit`. FILE gets the rows, from which --from fits again. --quick measures 3 shapes and tries degrees
1 to 3; its figures say little.
"""


def profile(
    model: Annotated[
        str | None, typer.Option(metavar="M", help="`demo`, `demo-random`, a directory, or a hub name.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The file to write.")] = None,
    vllm_flags: Annotated[
        list[str] | None, typer.Argument(metavar="[-- VLLM_FLAGS]...", help="vLLM's own flags, after `--`.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S", help="Time for measuring steps, after the start (60); one round is always finished."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="12 seconds in place of 60; of a grid, far less.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
    seed: Annotated[int, typer.Option(help="Decides the prompts and the order of the steps.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as one object on stdout.")] = False,
    recompute_grid: Annotated[
        bool, typer.Option("--recompute-grid", help="Measure prefills of six models instead, and fit them.")
    ] = False,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="FILE", help="With --recompute-grid: fit these rows, measure nothing."
        ),
    ] = None,
) -> None:
    """Measure what a model costs on this machine and write a cost file that other commands read."""
    if recompute_grid:
        _refuse_for_the_grid(model, seconds, vllm_flags)
        profile_recompute(
            RecomputeAsk(out=out, source=source, force=force, quick=quick, seed=seed, as_json=as_json)
        )
        return
    if model is None or out is None:
        raise ConfigError("--model M and --out FILE are needed; accepted without a model: --recompute-grid")
    if source is not None:
        raise ConfigError("--from FILE is accepted with --recompute-grid only")
    check_target(out, force)
    plan = _plan(seconds, quick, seed)
    with stdout_for_data():
        measured, interrupted = _measure(model, vllm_flags or [], plan)
        result = _conclude(measured, model, vllm_flags or [], seed, interrupted)
        if result is not None:
            _write(out, result, interrupted)
    if result is not None:
        if as_json:
            import json

            typer.echo(json.dumps({**result.to_dict(), "file": str(out), "interrupted": interrupted}))
        _show(result)
    if interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def _refuse_for_the_grid(model: str | None, seconds: float | None, vllm_flags: list[str] | None) -> None:
    """Raise ConfigError for what the grid decides by itself."""
    given = {"--model": model, "--seconds": seconds, "vLLM's own flags": vllm_flags}
    for name, value in given.items():
        if value not in (None, []):
            raise ConfigError(
                f"{name} and --recompute-grid are given; the grid makes its own models and steps, "
                f"accepted with it: --out, --from, --quick, --force, --seed, --json"
            )


def _plan(seconds: float | None, quick: bool, seed: int) -> ProfilePlan:
    from headway.engine.profiling.profile import DEFAULT_SECONDS, QUICK_SECONDS, ProfilePlan

    if quick and seconds is not None:
        raise ConfigError("--quick and --seconds are given; accepted: one of them")
    default = QUICK_SECONDS if quick else DEFAULT_SECONDS
    return ProfilePlan(seconds=default if seconds is None else seconds, seed=seed)


def _measure(model: str, vllm_flags: list[str], plan: ProfilePlan) -> tuple[Measurements | None, bool]:
    """What was measured, and whether it was interrupted; None if there is nothing yet."""
    measured: Measurements | None = None
    try:
        from headway.engine.profiling.profile import Measurements, measure
        from headway.engine.vllm.stepped_engine import SteppedEngine

        typer.echo("starting vLLM", err=True)
        engine = SteppedEngine(model, vllm_flags)
        try:
            measured = Measurements(engine.sizes)
            typer.echo(f"measuring steps for {plan.seconds:g} s; Ctrl-C ends it early", err=True)
            with progress() as tell:
                measure(engine, plan, measured, tell)
        finally:
            engine.close()
    except KeyboardInterrupt:
        return measured, True
    return measured, False


def _conclude(
    measured: Measurements | None, model: str, vllm_flags: list[str], seed: int, interrupted: bool
) -> ProfileResult | None:
    """The result; None, saying why, if an interruption left too little."""
    from datetime import date

    from headway.engine.machine import machine_name, vllm_version
    from headway.engine.profiling.result import Identity, conclude

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
        vllm_flags=tuple(vllm_flags),
    )
    return conclude(measured, identity, seed)


def _write(out: Path, result: ProfileResult, interrupted: bool) -> None:
    from headway.predict.steps.calibration import write_cost_file

    write_cost_file(out, result.cost)
    how = "interrupted, but enough was measured: " if interrupted else ""
    typer.echo(f"{how}wrote {out} ({result.cost.step.num_rows} steps)", err=True)


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
