"""`headway profile`: what a model costs on this machine, measured on the real engine."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli import EXIT_INTERRUPTED
from headway.cli.options import VllmFlags
from headway.cli.output import check_target, progress, stdout_for_data
from headway.errors import ConfigError
from headway.setting import Setting, Shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from headway.engine.profiling.profile import Measurements, ProfilePlan, ProfileResult
    from headway.engine.profiling.recompute_grid import GridMeasurements, GridPlan
    from headway.predict.recompute.regressors import JudgedCell
    from headway.predict.recompute.rows import RecomputeRows
    from headway.predict.recompute.verdict import RecomputeVerdict


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFlags:
    """What to measure, for how long, and where to write it."""

    model: Annotated[str | None, Setting("`demo`, `demo-random`, a directory, or a hub name.", "M")] = None
    out: Annotated[Path | None, Setting("The file to write.", "FILE")] = None
    vllm_flags: VllmFlags = ()
    seconds: Annotated[
        float | None,
        Setting("Seconds of measuring steps, after the start (60). One round is always finished.", "S"),
    ] = None
    quick: Annotated[bool, Setting("12 seconds in place of 60, and a small part of a grid.")] = False
    force: Annotated[bool, Setting("Replace FILE if it is there.")] = False
    seed: Annotated[int, Setting("Seed of the prompts and of the order of steps.")] = 0
    as_json: Annotated[
        bool, Setting("Print a summary as one object on stdout.", shown=Shown(flag="--json"))
    ] = False
    recompute_grid: Annotated[bool, Setting("Measure prefills of six models instead, and fit them.")] = False
    source: Annotated[
        Path | None,
        Setting(
            "With --recompute-grid: fit these rows, measure nothing.", "FILE", shown=Shown(flag="--from")
        ),
    ] = None


def profile(flags: ProfileFlags) -> None:
    """Measure what a model costs on this machine and write a cost file that other commands read."""
    model, out, vllm_flags, seed = flags.model, flags.out, flags.vllm_flags, flags.seed
    if flags.recompute_grid:
        _profile_recompute(flags)
        return
    if model is None or out is None:
        raise ConfigError("--model M and --out FILE are needed; accepted without a model: --recompute-grid")
    if flags.source is not None:
        raise ConfigError("--from FILE is accepted with --recompute-grid only")
    check_target(out, flags.force)
    plan = _plan(flags.seconds, flags.quick, seed)
    with stdout_for_data():
        measured, interrupted = _measure(model, vllm_flags, plan)
        result = _conclude(measured, model, vllm_flags, seed, interrupted)
        if result is not None:
            _write(out, result, interrupted)
    if result is not None:
        if flags.as_json:
            import json

            typer.echo(json.dumps({**result.to_dict(), "file": str(out), "interrupted": interrupted}))
        _show(result)
    if interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def _plan(seconds: float | None, quick: bool, seed: int) -> ProfilePlan:
    from headway.engine.profiling.profile import DEFAULT_SECONDS, QUICK_SECONDS, ProfilePlan

    if quick and seconds is not None:
        raise ConfigError("--quick and --seconds are given; accepted: one of them")
    default = QUICK_SECONDS if quick else DEFAULT_SECONDS
    return ProfilePlan(seconds=default if seconds is None else seconds, seed=seed)


def _measure(model: str, vllm_flags: Sequence[str], plan: ProfilePlan) -> tuple[Measurements | None, bool]:
    """Measure. Returns the measurements (None if there are none yet) and whether the user interrupted."""
    measured: Measurements | None = None
    try:
        from headway.engine.profiling.profile import Measurements, measure
        from headway.engine.stepped_engine import SteppedEngine

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
    measured: Measurements | None, model: str, vllm_flags: Sequence[str], seed: int, interrupted: bool
) -> ProfileResult | None:
    """Fit the result. Returns None, after an explanation, if an interruption left too little."""
    from datetime import date

    from headway.engine.machine import machine_name, vllm_version
    from headway.engine.profiling.profile import Identity, conclude

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
    """Print the fit's errors by kind of step, the copies, and the memory."""
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


# ---- --recompute-grid ----------------------------------------------------------------------------------

_BETWEEN_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")
_LARGEST_SHOWN = 10.0


def _profile_recompute(flags: ProfileFlags) -> None:
    """Measure or read the rows, print the table of errors on stderr, and the summary on stdout if asked for."""
    _check_grid(flags)
    from headway.predict.recompute.regressors import require_scikit_learn
    from headway.predict.recompute.rows import load_rows

    require_scikit_learn()
    if flags.source is not None:
        _judge(load_rows(flags.source), flags)
        return
    rows = _measured_rows(flags)
    if rows is None or rows.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    _judge(rows, flags)


def _check_grid(flags: ProfileFlags) -> None:
    """Raise ConfigError for settings that the grid fixes, and unless it is either measured or read."""
    given = {"--model": flags.model, "--seconds": flags.seconds, "vLLM's own flags": flags.vllm_flags}
    for name, value in given.items():
        if value not in (None, ()):
            raise ConfigError(
                f"{name} and --recompute-grid are given; the grid makes its own models and steps, "
                f"accepted with it: --out, --from, --quick, --force, --seed, --json"
            )
    if (flags.out is None) == (flags.source is None):
        found = "both" if flags.out else "neither"
        raise ConfigError(
            f"--recompute-grid needs --out FILE to measure or --from FILE to fit again; found {found}"
        )


def _judge(rows: RecomputeRows, flags: ProfileFlags) -> None:
    from headway.predict.recompute.regressors import DEGREES, QUICK_DEGREES
    from headway.predict.recompute.verdict import judge

    with progress() as tell:
        verdict = judge(rows, tell, degrees=QUICK_DEGREES if flags.quick else DEGREES, seed=flags.seed)
    if flags.as_json:
        import json

        typer.echo(json.dumps({**verdict.to_dict(), "file": str(flags.out or flags.source)}))
    _show_verdict(verdict)


def _measured_rows(flags: ProfileFlags) -> RecomputeRows | None:
    """Measure the rows and write them, also after an interruption. Returns None, after a message, if there are none."""
    from headway.engine.profiling.recompute_grid import FULL, QUICK, GridMeasurements
    from headway.predict.recompute.rows import write_rows

    assert flags.out is not None
    check_target(flags.out, flags.force)
    plan = QUICK if flags.quick else FULL
    measured = GridMeasurements()
    with stdout_for_data():
        interrupted = _measure_grid(plan, measured)
    if not measured.steps:
        typer.echo("interrupted, nothing written; still missing: everything", err=True)
        return None
    rows = measured.rows(plan, interrupted=interrupted)
    write_rows(flags.out, rows)
    how = f"interrupted; --from {flags.out} fits what was measured: " if interrupted else ""
    typer.echo(f"{how}wrote {flags.out} ({len(rows.steps)} steps)", err=True)
    return rows


def _measure_grid(plan: GridPlan, into: GridMeasurements) -> bool:
    """Fill `into`. Returns whether the user interrupted."""
    from headway.engine.profiling.recompute_grid import measure_grid

    shapes = len(plan.recipes())
    typer.echo(
        f"measuring {plan.num_rows} prefills of {shapes} models ({plan.name}); Ctrl-C ends it early", err=True
    )
    try:
        with progress() as tell:
            measure_grid(plan, into, tell)
    except KeyboardInterrupt:
        return True
    return False


def _show_verdict(verdict: RecomputeVerdict) -> None:
    """Print the errors of all cells, the compared predictors, and the copies."""
    from rich.console import Console

    from headway.predict.recompute.verdict import MOST_NOISE

    console = Console(stderr=True)
    _show_grid(verdict, console)
    _show_contenders(verdict, console)
    swap = verdict.swap
    console.print(
        f"swap: error {swap.out:.1%} out, {swap.into:.1%} in, on {swap.num_held_out} unseen sizes of copy"
    )
    console.print(f"at decision time: {verdict.better}")
    if verdict.noise > MOST_NOISE:
        console.print(
            f"this machine was busy: steps of one kind differ by {verdict.noise:.0%}, so that these errors say little "
            "of what predicts; measure again when it is idle"
        )


def _show_grid(verdict: RecomputeVerdict, console: Console) -> None:
    parts, plan = verdict.parts, verdict.rows.plan
    title = f"error (MAPE) on {len(parts.held_out)} steps of unseen configurations ({plan} grid)"
    console.print(_grid_table(verdict, title, lambda found: found.held_out))
    if parts.unseen_shape is not None:
        title = f"error (MAPE) on {len(parts.of_unseen_shape)} steps of {parts.unseen_shape}, an unseen shape"
        console.print(_grid_table(verdict, title, lambda found: found.on_unseen_shape))


def _grid_table(verdict: RecomputeVerdict, title: str, error: Callable[[JudgedCell], float | None]) -> Table:
    from rich.table import Table

    from headway.predict.recompute.regressors import REGRESSORS

    table = Table(title=title, box=None, padding=(0, 1, 0, 0))
    table.add_column("degree", justify="right")
    for name in REGRESSORS:
        table.add_column(_BETWEEN_WORDS.sub("\n", name), justify="right")
    by_cell = {(found.cell.degree, found.cell.regressor): found for found in verdict.grid}
    for degree in sorted({found.cell.degree for found in verdict.grid}):
        row = [by_cell[degree, name] for name in REGRESSORS]
        table.add_row(str(degree), *(_per_cent(error(found)) for found in row))
    return table


def _show_contenders(verdict: RecomputeVerdict, console: Console) -> None:
    from rich.table import Table

    title = f"analyser: {verdict.chosen.cell}"
    table = Table(
        "", "unseen\nsteps", "their\nmedians", "of one\nprompt", "unseen\nshape", "to ask", title=title
    )
    for found in verdict.contenders:
        errors = (found.held_out, found.on_medians, found.alone, found.on_unseen_shape)
        asking = "-" if found.asking_s is None else f"{found.asking_s * 1e6:.0f} µs"
        table.add_row(found.name, *map(_per_cent, errors), asking)
    console.print(table)


def _per_cent(error: float | None) -> str:
    if error is None:
        return "-"
    return f"{error:.1%}" if error < _LARGEST_SHOWN else f">{_LARGEST_SHOWN:.0%}"
