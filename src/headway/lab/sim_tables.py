"""The results of a simulation as a comparison of one load, a table over loads and seeds, or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from headway.lab.cells import CellFolder
from headway.lab.grid import PolicyGrid
from headway.lab.policy_choice import label
from headway.lab.simulation import CellResult
from headway.results import COLUMNS, Comparison, compare, read_records, sweep_svg, terminal_table
from headway.results.tables import ARROWS, MISSING, decimals, wrap_columns
from headway.statistics import deviation, known, mean_of_all

SWEEP_KEYS = (
    "goodput",
    "throughput_rps",
    "mean_ttft_s",
    "p99_ttft_s",
    "mean_tbt_s",
    "mean_jct_s",
    "p99_jct_s",
    "preemptions",
)
"""Summary keys in a table over loads or seeds."""

PICTURES = ("goodput", "throughput_rps", "mean_ttft_s", "p99_ttft_s", "mean_jct_s", "p99_jct_s")
"""Summary keys drawn against load, each in a file of its name."""

_GAP = 4  # spaces between two columns and at the edges


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaged:
    """One policy at one load, over its seeds: means, and standard deviations if there are several.

    A value that some seed lacks is None.
    """

    policy: str
    load: float
    num_seeds: int
    means: Mapping[str, float | None]
    deviations: Mapping[str, float | None]


def averaged(results: Sequence[CellResult]) -> list[Averaged]:
    """Averages over seeds, load by load, with policies in their order."""
    by_run: dict[tuple[float, str], list[CellResult]] = {}
    for result in results:
        by_run.setdefault((result.cell.load, result.cell.policy), []).append(result)
    return [_average(load, policy, mine) for (load, policy), mine in by_run.items()]


def _average(load: float, policy: str, results: Sequence[CellResult]) -> Averaged:
    summaries = [result.summary.to_dict() for result in results]
    means: dict[str, float | None] = {}
    deviations: dict[str, float | None] = {}
    for key in COLUMNS:
        values = [summary[key] for summary in summaries]
        means[key] = values[0] if len(values) == 1 else mean_of_all(values)
        deviations[key] = None if means[key] is None else deviation(known(values))
    return Averaged(policy=policy, load=load, num_seeds=len(results), means=means, deviations=deviations)


# ---- JSON ----------------------------------------------------------------------------------------------


def to_json(grid: PolicyGrid, results: Sequence[CellResult]) -> str:
    """One object, `{"<policy>": {summary}}`; with several loads the keys are "<policy> load=<load>".

    With several seeds each value is the mean, and `seeds` and `deviation` (for each key) are added. With predicted
    lengths `predictor` names the predictor.
    """
    predictors = {(result.cell.policy, result.cell.load): result.predictor for result in results}
    plain: dict[str, dict[str, Any]] = {}
    for run in averaged(results):
        name = run.policy if len(grid.loads) == 1 else f"{run.policy} load={run.load:g}"
        plain[name] = dict(run.means)
        if run.num_seeds > 1:
            plain[name] |= {"seeds": run.num_seeds, "deviation": run.deviations}
        if predictors[run.policy, run.load]:
            plain[name]["predictor"] = predictors[run.policy, run.load]
    return msgspec.json.format(msgspec.json.encode(plain), indent=2).decode()


# ---- tables --------------------------------------------------------------------------------------------


def tables(folder: CellFolder, results: Sequence[CellResult]) -> RenderableType:
    """The full comparison of a single load and seed; otherwise a table with a row for each load and policy."""
    grid = folder.grid
    if len(grid.loads) == 1 and grid.num_seeds == 1:
        return terminal_table(_comparison(folder, results))
    return Group(_SweepTable(grid, averaged(results)), *map(Text, _doubts(results)))


def _comparison(folder: CellFolder, results: Sequence[CellResult]) -> Comparison:
    """The comparison; reads records back only if the policies finished different requests."""
    summaries = {label(result.cell.policy): result.summary for result in results}
    if _same_finished(results):
        return Comparison(summaries, {}, "")
    records = {label(result.cell.policy): read_records(folder.records(result.cell)) for result in results}
    return compare(summaries, records)


def _same_finished(results: Sequence[CellResult]) -> bool:
    return len({result.finished_digest for result in results}) == 1


def _doubts(results: Sequence[CellResult]) -> Iterator[str]:
    """A line for each load at which latencies are of different requests."""
    ascending = sorted(results, key=lambda result: result.cell.load)
    for place, at_load in groupby(ascending, lambda result: result.cell.place):
        by_seed: dict[int, list[CellResult]] = {}
        for result in at_load:
            by_seed.setdefault(result.cell.seed, []).append(result)
        if not all(map(_same_finished, by_seed.values())):
            yield f"{place}: latencies are not comparable, the policies finished different requests"


@dataclass(frozen=True, slots=True)
class _SweepTable:
    """A row for each load and policy; columns beyond the terminal's width continue in another table below."""

    grid: PolicyGrid
    runs: Sequence[Averaged]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = [_column(key, self.runs) for key in SWEEP_KEYS]
        columns = [column for column in columns if set(column[1:]) != {MISSING}]
        names = [(f"{run.load:g}", label(run.policy)) for run in self.runs]
        widest = max(max(len(load), len(self.grid.load_name)) + len(name) for load, name in names)
        room = options.max_width - widest - 2 * _GAP
        widths = [_GAP + max(len(word) for text in column for word in text.split("\n")) for column in columns]
        for part in wrap_columns(widths, room):
            yield self._table(names, [columns[number] for number in part])
        if self.grid.num_seeds > 1:
            yield Text(f"mean ± standard deviation over {self.grid.num_seeds} seeds")

    def _table(self, names: Sequence[tuple[str, str]], columns: Sequence[Sequence[str]]) -> Table:
        table = Table(box=SIMPLE_HEAD, header_style="")
        table.add_column(self.grid.load_name, justify="right", vertical="bottom", no_wrap=True)
        table.add_column("policy", vertical="bottom", overflow="fold")
        for head, *_ in columns:
            table.add_column(Text(head), justify="right", vertical="bottom")
        for row, (load, name) in enumerate(names):
            cells = [column[row + 1] for column in columns]
            ends = row + 1 == len(names) or names[row + 1][0] != load
            table.add_row(load, Text(name), *cells, end_section=ends)
        return table


def _column(key: str, runs: Sequence[Averaged]) -> list[str]:
    """Head and cells of a column, in ms if all of its means are under a second."""
    column = COLUMNS[key]
    means = known(run.means[key] for run in runs)
    in_ms = column.unit == "s" and 0 < max(means, default=0) < 1
    scale, unit = (1000, "ms") if in_ms else (1, column.unit)
    places = decimals([mean * scale for mean in means])
    cells = [_cell(run.means[key], run.deviations[key], scale, places) for run in runs]
    below = " ".join(filter(None, (unit, ARROWS[column.better])))
    return [f"{column.heading}\n{below}", *cells]


def _cell(mean: float | None, deviation: float | None, scale: int, places: int) -> str:
    if mean is None:
        return MISSING
    spread = "" if deviation is None else f" ± {deviation * scale:,.{places}f}"
    return f"{mean * scale:,.{places}f}{spread}"


# ---- pictures ------------------------------------------------------------------------------------------


def sweep_pictures(grid: PolicyGrid, results: Sequence[CellResult]) -> dict[str, str]:
    """File name -> SVG of a summary key against load, for the measured keys; means over seeds."""
    pictures: dict[str, str] = {}
    runs = averaged(results)
    for key in PICTURES:
        if any(run.means[key] is not None for run in runs):
            curves: dict[str, list[tuple[float, float | None]]] = {}
            for run in runs:
                curves.setdefault(label(run.policy), []).append((run.load, run.means[key]))
            pictures[f"{key.removesuffix('_s').replace('_', '-')}.svg"] = sweep_svg(
                curves, key, grid.load_name
            )
    return pictures
