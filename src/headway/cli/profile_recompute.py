"""`headway profile --recompute-grid`: how well a prefill's time, and a swap's, can be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from headway.cli import EXIT_INTERRUPTED
from headway.cli.measuring import check_target, progress, stdout_for_data
from headway.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from headway.engine.recompute_grid import GridMeasurements, GridPlan
    from headway.predict.recompute_rows import RecomputeRows
    from headway.predict.recompute_verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeAsk:
    """What was asked for: rows measured into `out`, or read from `source`."""

    out: Path | None
    source: Path | None
    force: bool
    quick: bool
    seed: int
    as_json: bool

    def __post_init__(self) -> None:
        if (self.out is None) == (self.source is None):
            found = "both" if self.out else "neither"
            raise ConfigError(
                f"--recompute-grid needs --out FILE to measure or --from FILE to fit again; found {found}"
            )


def profile_recompute(ask: RecomputeAsk) -> None:
    """Measure or read the rows, print the table of errors on stderr and, if asked to, a summary on stdout."""
    from headway.predict.recompute_regressors import require_scikit_learn
    from headway.predict.recompute_rows import load_rows

    require_scikit_learn()
    if ask.source is not None:
        _conclude(load_rows(ask.source), ask)
        return
    rows = _measured_rows(ask)
    if rows is None or rows.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    _conclude(rows, ask)


def _conclude(rows: RecomputeRows, ask: RecomputeAsk) -> None:
    from headway.predict.recompute_regressors import DEGREES, QUICK_DEGREES
    from headway.predict.recompute_verdict import judge

    with progress() as tell:
        verdict = judge(rows, tell, degrees=QUICK_DEGREES if ask.quick else DEGREES, seed=ask.seed)
    if ask.as_json:
        import json

        typer.echo(json.dumps({**verdict.to_dict(), "file": str(ask.out or ask.source)}))
    _show(verdict)


def _measured_rows(ask: RecomputeAsk) -> RecomputeRows | None:
    """The rows, written to their file, also after an interruption; None, saying so, if there are none yet."""
    from headway.engine.recompute_grid import FULL, QUICK, GridMeasurements
    from headway.predict.recompute_rows import write_rows

    assert ask.out is not None
    check_target(ask.out, ask.force)
    plan = QUICK if ask.quick else FULL
    measured = GridMeasurements()
    with stdout_for_data():
        interrupted = _measure(plan, measured)
    if not measured.steps:
        typer.echo("interrupted, nothing written; still missing: everything", err=True)
        return None
    rows = _rows_of(measured, plan, interrupted)
    write_rows(ask.out, rows)
    how = f"interrupted; --from {ask.out} fits what was measured: " if interrupted else ""
    typer.echo(f"{how}wrote {ask.out} ({len(rows.steps)} steps)", err=True)
    return rows


def _measure(plan: GridPlan, into: GridMeasurements) -> bool:
    """Fill `into`; whether it was interrupted."""
    from headway.engine.recompute_grid import measure_grid

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


def _rows_of(measured: GridMeasurements, plan: GridPlan, interrupted: bool) -> RecomputeRows:
    from datetime import date

    from headway.engine.machine import machine_name, vllm_version
    from headway.engine.server_command import is_cpu_build
    from headway.predict.recompute_rows import RecomputeRows

    return RecomputeRows(
        machine=machine_name(),
        engine="cpu-engine" if is_cpu_build() else "gpu-engine",
        vllm_version=vllm_version(),
        day=date.today().isoformat(),
        plan=plan.name,
        interrupted=interrupted,
        models=tuple(measured.models),
        steps=tuple(measured.steps),
        copies=tuple(measured.copies),
    )


def _show(verdict: Verdict) -> None:
    """The errors of all cells, the contenders and the copies, for people."""
    from rich.console import Console

    console = Console(stderr=True)
    _show_grid(verdict, console)
    _show_contenders(verdict, console)
    swap = verdict.swap
    console.print(
        f"swap: error {swap.out:.1%} out, {swap.into:.1%} in, on {swap.num_held_out} unseen sizes of copy"
    )
    console.print(f"at decision time: {verdict.better}")


def _show_grid(verdict: Verdict, console: Console) -> None:
    from rich.table import Table

    from headway.predict.recompute_regressors import REGRESSORS

    parts = verdict.parts
    apart = (
        f"; after the stroke, on {parts.unseen_shape}, of which nothing was learned"
        if parts.unseen_shape
        else ""
    )
    table = Table(
        title=f"error (MAPE) on {len(parts.held_out)} steps of unseen configurations ({verdict.rows.plan}){apart}"
    )
    table.add_column("degree", justify="right")
    for name in REGRESSORS:
        table.add_column(name, justify="right")
    by_cell = {(found.cell.degree, found.cell.regressor): found for found in verdict.grid}
    for degree in sorted({found.cell.degree for found in verdict.grid}):
        row = [by_cell[degree, name] for name in REGRESSORS]
        table.add_row(str(degree), *(_both((found.held_out, found.on_unseen_shape)) for found in row))
    console.print(table)


def _show_contenders(verdict: Verdict, console: Console) -> None:
    from rich.table import Table

    table = Table("", "unseen steps", "their medians", "of one prompt", "unseen shape", "to ask")
    for found in verdict.contenders:
        name = f"{found.name} ({verdict.chosen.cell})" if found.name == "analyser" else found.name
        asking = "-" if found.asking_s is None else f"{found.asking_s * 1e6:.0f} µs"
        errors = (found.held_out, found.on_medians, found.alone, found.on_unseen_shape)
        table.add_row(name, *map(_per_cent, errors), asking)
    console.print(table)


def _both(errors: Sequence[float | None]) -> str:
    return " / ".join(_per_cent(error) for error in errors if error is not None)


def _per_cent(error: float | None) -> str:
    if error is None:
        return "-"
    return f"{error:.1%}" if error < 10 else ">1000%"
