"""`headway profile --recompute-grid`: how well a prefill's time, and a swap's, can be told."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from headway.cli import EXIT_INTERRUPTED
from headway.cli.measuring import check_target, progress, stdout_for_data
from headway.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from headway.engine.profiling.recompute_grid import GridMeasurements, GridPlan
    from headway.predict.recompute.regressors import JudgedCell
    from headway.predict.recompute.rows import RecomputeRows
    from headway.predict.recompute.verdict import RecomputeVerdict


_BETWEEN_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")
_LARGEST_SHOWN = 10.0


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
    from headway.predict.recompute.regressors import require_scikit_learn
    from headway.predict.recompute.rows import load_rows

    require_scikit_learn()
    if ask.source is not None:
        _conclude(load_rows(ask.source), ask)
        return
    rows = _measured_rows(ask)
    if rows is None or rows.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    _conclude(rows, ask)


def _conclude(rows: RecomputeRows, ask: RecomputeAsk) -> None:
    from headway.predict.recompute.regressors import DEGREES, QUICK_DEGREES
    from headway.predict.recompute.verdict import judge

    with progress() as tell:
        verdict = judge(rows, tell, degrees=QUICK_DEGREES if ask.quick else DEGREES, seed=ask.seed)
    if ask.as_json:
        import json

        typer.echo(json.dumps({**verdict.to_dict(), "file": str(ask.out or ask.source)}))
    _show(verdict)


def _measured_rows(ask: RecomputeAsk) -> RecomputeRows | None:
    """The rows, written to their file, also after an interruption; None, saying so, if there are none yet."""
    from headway.engine.profiling.recompute_grid import FULL, QUICK, GridMeasurements
    from headway.predict.recompute.rows import write_rows

    assert ask.out is not None
    check_target(ask.out, ask.force)
    plan = QUICK if ask.quick else FULL
    measured = GridMeasurements()
    with stdout_for_data():
        interrupted = _measure(plan, measured)
    if not measured.steps:
        typer.echo("interrupted, nothing written; still missing: everything", err=True)
        return None
    rows = measured.rows(plan, interrupted=interrupted)
    write_rows(ask.out, rows)
    how = f"interrupted; --from {ask.out} fits what was measured: " if interrupted else ""
    typer.echo(f"{how}wrote {ask.out} ({len(rows.steps)} steps)", err=True)
    return rows


def _measure(plan: GridPlan, into: GridMeasurements) -> bool:
    """Fill `into`; whether it was interrupted."""
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


def _show(verdict: RecomputeVerdict) -> None:
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
