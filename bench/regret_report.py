"""The tables and the plot of `bench/regret.py`."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.regret_statistics import CellFindings
from headway.results.svg import INK, draw, line_style
from headway.whole_file import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TABLE, VALUES, PLOT = "regret.txt", "regret.csv", "regret.svg"
SHOWN_BEST = 5
"""Contenders named in a line of the table, the best first."""
_SIZE_IN = (6.4, 3.4)


def write_report(root: Path, subject: str, findings: Sequence[CellFindings], rows: Sequence[Any]) -> None:
    """The table, every value by seed, and the plot, in the folder."""
    write_whole(root / TABLE, table(subject, rows).encode())
    write_whole(root / VALUES, values(findings).encode())
    write_whole(root / PLOT, plot(subject, rows).encode())


def table(subject: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each cell: the subject, the best presets and clairvoyants, the loss and the gap."""
    width = max((len(row["cell"]) for row in rows), default=4)
    lines = [f"{'cell':{width}}  {subject:>10}  {'loss':>8} {'at least':>8} {'gap':>8}  best first"]
    lines += [_line(row, subject, width) for row in rows]
    lines.append(
        "goodput: share of requests within targets; none: mean JCT in seconds. loss: behind the best preset, in share "
        "or as ratio - 1; at least: its lower 95 % bound; gap: behind the best of all, clairvoyants included."
    )
    return "\n".join(lines) + "\n"


def _line(row: Mapping[str, Any], subject: str, width: int) -> str:
    sign = 1 if row["metric"] == "mean_jct_s" else -1
    known = [(sign * value, name) for name, value in row["by_contender"].items() if value is not None]
    best = [f"{name} {sign * value:.4g}" for value, name in sorted(known)[:SHOWN_BEST]]
    cells = [_number(row.get(key), 8) for key in ("loss", "loss_lower_95", "gap_to_bound")]
    return f"{row['cell']:{width}}  {_number(row[subject], 10)}  {' '.join(cells)}  {', '.join(best)}"


def _number(value: float | None, width: int) -> str:
    return f"{'–' if value is None else f'{value:.4g}':>{width}}"


def values(findings: Sequence[CellFindings]) -> str:
    """CSV: a row for each cell and contender, with the value of each seed; empty where there is none."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    seeds = max((len(each) for found in findings for each in found.values.values()), default=0)
    writer.writerow(["cell", "metric", "contender", "mean", *(f"seed_{seed}" for seed in range(seeds))])
    for found in findings:
        metric = "goodput" if found.is_goodput else "mean_jct_s"
        for name, several in found.values.items():
            mean = found.mean(name)
            shown = ["" if value is None else f"{value:.6g}" for value in (mean, *several)]
            writer.writerow([found.cell.name, metric, name, *shown])
    return out.getvalue()


def plot(subject: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Share of cells in which the subject loses no more than x to the best preset, and to the best of all."""
    title = f"{subject}: what it loses, over cells"
    curves = {
        f"{what} ({metric})": sorted(
            row[key]
            for row in rows
            if key in row and (row["metric"] == "mean_jct_s") is (metric == NONE_SAID)
        )
        for what, key in (("to the best preset", "loss"), ("to the best of all", "gap_to_bound"))
        for metric in (TARGETS_SAID, NONE_SAID)
    }
    curves = {name: losses for name, losses in curves.items() if losses}

    def paint(axes: Axes) -> None:
        axes.set_title(title)
        for index, losses in enumerate(curves.values()):
            shares = [(place + 1) / len(losses) for place in range(len(losses))]
            axes.step(losses, shares, where="post", **{**line_style(index), "marker": ""})
        axes.axvline(0.0, color=INK, linewidth=1.0, linestyle=":")
        axes.set_xlabel("loss; simulated")
        axes.set_ylabel("share of cells")
        axes.set_ylim(0, 1.02)

    return draw(title, _SIZE_IN, paint, _legend(list(curves)))


TARGETS_SAID, NONE_SAID = "goodput, in share", "mean JCT, ratio - 1"


def _legend(names: Sequence[str]) -> list[tuple[Any, str]]:
    from matplotlib.lines import Line2D

    return [(Line2D([], [], **{**line_style(index), "marker": ""}), name) for index, name in enumerate(names)]
