"""The figures of `bench/gain/regret.py`: losses to the best preset, gaps to clairvoyants, gains over `vllm`."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from math import exp, log, sqrt
from typing import Any

from scipy.special import stdtrit

from bench.gain.regret_runs import LOADS, STOCK, Cell, clairvoyants
from bench.gain.regret_workloads import CLASSES, NONE
from headway.statistics import deviation, mean, mean_of_all, mean_of_known, median, rank

SATURATED, LOW = 1.2, 0.5
"""Loads at which gains over `vllm`, and losses to it, are reported."""
LEAST_GOODPUT = 0.001
"""In a ratio, a smaller goodput counts as this much."""
DIGITS = 4
TAILS = ("p99_jct_s", "p99_ttft_s", "worst_slowdown")
"""Reported for every contender beside the metric of a cell."""

AIMS = {
    "worst_vs_best_preset": ("<=", 0.02),
    "median_gap_to_bound": ("<=", 0.10),
    "goodput_gain_vs_vllm_saturated": (">=", 1.5),
    "mean_jct_gain_vs_vllm_saturated": (">=", 3.0),
    "low_load_loss": ("<=", 0.02),
}
"""Key -> its aim; for gains the aim is on the median."""


def lower_bound(values: Sequence[float]) -> float:
    """A one-sided 95 % lower bound of the mean of these values; of a single value itself, as its spread is unknown.

    Values are taken as normal (Student's t).
    """
    spread = deviation(values)
    if spread is None:
        return values[0]
    return mean(values) - float(stdtrit(len(values) - 1, 0.95)) * spread / sqrt(len(values))


@dataclass(frozen=True, slots=True)
class CellFindings:
    """A cell's values by contender, one for each seed; None where there is none. All contenders of a cell served the
    same requests.

    The `clairvoyants` among them are no rivals; without any there is no bound.
    """

    cell: Cell
    subject: str
    rivals: frozenset[str]
    clairvoyants: frozenset[str]
    values: Mapping[str, Sequence[float | None]]
    tails: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    """By contender: TAILS, each the mean over seeds."""

    @property
    def is_goodput(self) -> bool:
        """Whether more is better: goodput where there are targets, mean JCT where there are none."""
        return self.cell.classes != NONE

    def mean(self, name: str) -> float | None:
        """Mean over seeds; None where one is missing, as such a mean is not comparable."""
        return mean_of_all(self.values[name])

    def best(self, names: Sequence[str]) -> str | None:
        """The contender with the best mean; None if none has one. Ties go to the first by name."""
        sign = -1 if self.is_goodput else 1
        ranked = [(sign * own, name) for name in names if (own := self.mean(name)) is not None]
        return min(ranked)[1] if ranked else None

    def losses(self, to: str) -> list[float]:
        """How far the subject is behind another contender, seed by seed: a share, or a ratio less 1. Below 0 it is
        ahead.

        Empty where one of the two lacks a value: the seeds left would be those that went well.
        """
        pairs = [
            (theirs, mine)
            for theirs, mine in zip(self.values[to], self.values[self.subject], strict=True)
            if theirs is not None and mine is not None
        ]
        if len(pairs) < len(self.values[to]):
            return []
        return [theirs - mine if self.is_goodput else mine / theirs - 1 for theirs, mine in pairs]

    def gain(self, over: str) -> float | None:
        """How many times better the subject is than another contender; None where one has no value."""
        mine, theirs = self.mean(self.subject), self.mean(over)
        if mine is None or theirs is None:
            return None
        return mine / max(theirs, LEAST_GOODPUT) if self.is_goodput else theirs / mine

    def row(self) -> dict[str, Any]:
        """The cell's row in the report."""
        best = self.best([name for name in self.values if name in self.rivals])
        bound = self.best(list(self.values)) if self.clairvoyants else None
        found: dict[str, Any] = {
            "cell": self.cell.name,
            "metric": "goodput" if self.is_goodput else "mean_jct_s",
            self.subject: _short(self.mean(self.subject)),
            "best_preset": best,
            "bound": bound,
        }
        if best is not None and (losses := self.losses(best)):
            found |= {"loss": _short(mean(losses)), "loss_lower_95": _short(lower_bound(losses))}
        if bound is not None and (gaps := self.losses(bound)):
            found["gap_to_bound"] = _short(mean(gaps))
        by_name = {name: _short(self.mean(name)) for name in self.values}
        tails = {key: {name: _short(each[key]) for name, each in self.tails.items()} for key in TAILS}
        return {**found, "by_contender": by_name, **tails}


def summary(findings: Sequence[CellFindings]) -> dict[str, Any]:
    """The overall figures, and which of the aims are met. Keys are stable: scripts rely on them."""
    rows = [found.row() for found in findings]
    told = [row for row in rows if "loss" in row]
    worst = max(told, key=lambda row: row["loss_lower_95"], default=None)
    gaps = [row["gap_to_bound"] for row in rows if "gap_to_bound" in row]
    found: dict[str, Any] = {
        "cells": len(rows),
        "worst_vs_best_preset": None if worst is None else worst["loss_lower_95"],
        "worst_cell": None if worst is None else worst["cell"],
        "p95_vs_best": rank([row["loss"] for row in told], 0.95) if told else None,
        "losing_cells": losing(told),
        "cells_without_loss": [row["cell"] for row in rows if "loss" not in row],
        "median_gap_to_bound": _short(median(gaps)) if gaps else None,
        "goodput_gain_vs_vllm_saturated": _gains(findings, goodput=True),
        "mean_jct_gain_vs_vllm_saturated": _gains(findings, goodput=False),
        "low_load_loss": low_load_loss(findings),
    }
    found["aims"] = aims(found)
    found["by_cell"] = rows
    return found


def losing(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The cells in which the subject is behind the best preset with 95 % confidence (lower bound above 0), worst
    first.
    """
    behind = sorted(
        (row for row in rows if row["loss_lower_95"] > 0), key=lambda row: -float(row["loss_lower_95"])
    )
    return [{key: row[key] for key in ("cell", "best_preset", "loss", "loss_lower_95")} for row in behind]


def _gains(findings: Sequence[CellFindings], *, goodput: bool) -> list[float] | None:
    """[median, least, most] over `vllm` at load SATURATED, over cells with targets or without; None without such."""
    gains = [
        gain
        for found in findings
        if found.cell.load == SATURATED and found.is_goodput is goodput and STOCK in found.values
        if (gain := found.gain(STOCK)) is not None
    ]
    return [round(value, DIGITS) for value in (median(gains), min(gains), max(gains))] if gains else None


def low_load_loss(findings: Sequence[CellFindings]) -> float | None:
    """The largest loss to `vllm` of a cell at load LOW, by its lower bound; None without such cells."""
    losses = [
        lower_bound(found.losses(STOCK))
        for found in findings
        if found.cell.load == LOW and STOCK in found.values and found.losses(STOCK)
    ]
    return round(max(losses), DIGITS) if losses else None


def aims(found: Mapping[str, Any]) -> dict[str, Any]:
    """Key -> the aim, the value found, and whether it is met; null where nothing was measured."""
    told = {}
    for key, (sign, aim) in AIMS.items():
        value = found[key][0] if isinstance(found[key], list) else found[key]
        met = None if value is None else value <= aim if sign == "<=" else value >= aim
        told[key] = {"aim": f"{sign} {aim}", "found": value, "met": met}
    return told


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


# ---- the tables of docs/regret.md --------------------------------------------------------------------

Row = Mapping[str, Any]

BAR: float = AIMS["worst_vs_best_preset"][1]
_HEADS = {NONE: "no targets: mean JCT (s)", "one": "one class: goodput", "two": "two classes: goodput"}


def tables(subject: str, rows: Sequence[Row]) -> str:
    """All contenders, then for each machine the losses at each load, and every cell; `rows` come from `summary`."""
    machines = dict.fromkeys(_place(row)[1] for row in rows)
    parts = ["\n".join(league(rows))]
    for machine in machines:
        of_it = [row for row in rows if _place(row)[1] == machine]
        parts += [f"`{machine}`", "\n".join(by_load(of_it)), "\n".join(by_cell(subject, of_it))]
    return "\n\n".join(parts)


def league(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each contender, the least mean JCT first: JCT relative to stock without targets, goodput with; by
    load.

    Ratios are geometric means over the cells in which both have a value, goodputs the mean over the contender's cells.
    """
    loads = [load for load in LOADS if any(_load(row) == load for row in rows)]
    free = [row for row in rows if row["metric"] == "mean_jct_s"]
    asked = [row for row in rows if row["metric"] == "goodput"]
    names = list(dict.fromkeys(name for row in rows for name in row["by_contender"]))
    figures = ("by_contender", *TAILS)
    yield (
        f"| policy; loads {', '.join(f'{load:g}' for load in loads)} | mean JCT | p99 JCT | p99 first token "
        "| worst slowdown | goodput |"
    )
    yield "|---|---|---|---|---|---|"
    for name in sorted(names, key=lambda each: _times_stock(free, each, figures[0]) or float("inf")):
        times = [
            " / ".join(_shown(_times_stock(_at(free, load), name, key)) for load in loads) for key in figures
        ]
        goodputs = [
            mean_of_known(row["by_contender"].get(name) for row in _at(asked, load)) for load in loads
        ]
        yield f"| `{name}` | {' | '.join(times)} | {' / '.join(map(_shown, goodputs))} |"


def _times_stock(rows: Sequence[Row], name: str, key: str) -> float | None:
    """A figure of a contender divided by stock's: the geometric mean over cells; None where no cell has both."""
    pairs = [(row[key].get(name), row[key].get(STOCK)) for row in rows if key in row]
    logs = [log(own / stock) for own, stock in pairs if own and stock]
    return exp(mean(logs)) if logs else None


def _at(rows: Sequence[Row], load: float) -> list[Row]:
    return [row for row in rows if _load(row) == load]


def _load(row: Row) -> float:
    return float(_place(row)[2])


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def by_load(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each load: the losses of its cells to the best preset, and how many are within the bar."""
    yield (
        f"| load | loss of mean JCT, worst / median / best; cells within {BAR:.0%} "
        f"| loss of goodput, worst / median / best; cells within {BAR:g} |"
    )
    yield "|---|---|---|"
    for load in LOADS:
        here = [row for row in rows if _place(row)[2] == f"{load:g}" and "loss" in row]
        if here:
            none = [row["loss"] for row in here if row["metric"] == "mean_jct_s"]
            targets = [row["loss"] for row in here if row["metric"] == "goodput"]
            yield f"| {load:g} | {_spread(none, '.1%')} | {_spread(targets, '.3f')} |"


def _spread(losses: Sequence[float], shape: str) -> str:
    if not losses:
        return "–"
    told = " / ".join(format(value, shape) for value in (max(losses), median(losses), min(losses)))
    return f"{told}; {sum(loss <= BAR for loss in losses)} of {len(losses)}"


def by_cell(subject: str, rows: Sequence[Row]) -> Iterator[str]:
    """A line for each workload and load: in each set of targets the subject, stock, the best preset, and the best
    clairvoyant.
    """
    by_name = {row["cell"]: row for row in rows}
    sets = [classes for classes in CLASSES if any(_place(row)[3] == classes for row in rows)]
    yield f"| workload | load | {' | '.join(_HEADS[classes] for classes in sets)} |"
    yield f"|---|---|{'---|' * len(sets)}"
    for place in dict.fromkeys(_place(row)[:3] for row in rows):
        told = [_told(subject, by_name.get("/".join((*place, classes)))) for classes in sets]
        yield f"| `{place[0]}` | {place[2]} | {' | '.join(told)} |"


def _told(subject: str, row: Row | None) -> str:
    """`headway` / `vllm` / best other preset / best clairvoyant; bold where the loss is within the bar."""
    if row is None:
        return "–"
    of_each, best = row["by_contender"], row["best_preset"]
    mine = _figure(row, [subject])
    if row.get("loss", 1.0) <= BAR:
        mine = f"**{mine}**"
    named = "–" if best is None else f"{_figure(row, [best])} `{best}`"
    knowing = [each.name for each in clairvoyants(subject) if each.name in of_each]
    return f"{mine} / {_figure(row, [STOCK])} / {named} / {_figure(row, knowing)}"


def _figure(row: Row, names: Iterable[str]) -> str:
    """The best of some contenders' values; a dash where none has one."""
    known = [value for name in names if (value := row["by_contender"].get(name)) is not None]
    if not known:
        return "–"
    return f"{min(known):.3g}" if row["metric"] == "mean_jct_s" else f"{max(known):.3f}"


def _place(row: Row) -> tuple[str, ...]:
    """Workload, machine, load, classes."""
    return tuple(row["cell"].split("/"))


# ---- regret.csv ------------------------------------------------------------------------------------------

VALUES = "regret.csv"


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
