"""What `bench/regret.py` makes of its runs: losses to the best preset, gaps to the clairvoyants, gains over `vllm`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from statistics import fmean, median, stdev
from typing import Any

from scipy.special import stdtrit

from bench.regret_cells import Cell
from bench.regret_contenders import STOCK
from bench.regret_targets import NONE

SATURATED, LOW = 1.2, 0.5
"""Loads at which gains over `vllm`, and losses to it, are told."""
LEAST_GOODPUT = 0.001
"""In a ratio, a goodput of less counts as this much."""
DIGITS = 4

AIMS = {
    "worst_vs_best_preset": ("<=", 0.02),
    "median_gap_to_bound": ("<=", 0.10),
    "goodput_gain_vs_vllm_saturated": (">=", 1.5),
    "mean_jct_gain_vs_vllm_saturated": (">=", 3.0),
    "low_load_loss": ("<=", 0.02),
}
"""Key -> what it should be; of gains the median."""


def lower_bound(values: Sequence[float]) -> float:
    """What the mean of such values is above, 95 times of 100: of one value itself, as nothing is known of its spread.

    Values are taken as normal: Student's t, one-sided.
    """
    if len(values) == 1:
        return values[0]
    return fmean(values) - float(stdtrit(len(values) - 1, 0.95)) * stdev(values) / sqrt(len(values))


def quantile(values: Sequence[float], share: float) -> float:
    """The nearest-rank quantile."""
    return sorted(values)[max(1, ceil(share * len(values))) - 1]


@dataclass(frozen=True, slots=True)
class CellFindings:
    """A cell's values by contender, one for each seed; None where there is none. All of a cell served the same.

    The `clairvoyants` among them are no rivals; without any there is no bound.
    """

    cell: Cell
    subject: str
    rivals: frozenset[str]
    clairvoyants: frozenset[str]
    values: Mapping[str, Sequence[float | None]]

    @property
    def is_goodput(self) -> bool:
        """Whether more is better: goodput where there are targets, mean JCT where there are none."""
        return self.cell.classes != NONE

    def mean(self, name: str) -> float | None:
        """Over seeds; None where one is missing, as such a mean compares with no other."""
        found = [value for value in self.values[name] if value is not None]
        return fmean(found) if found and len(found) == len(self.values[name]) else None

    def best(self, names: Sequence[str]) -> str | None:
        """The one with the best mean; None if none has one. Ties go to the first by name."""
        sign = -1 if self.is_goodput else 1
        ranked = [(sign * mean, name) for name in names if (mean := self.mean(name)) is not None]
        return min(ranked)[1] if ranked else None

    def losses(self, to: str) -> list[float]:
        """By how much the subject is behind another, seed by seed: a share, or a ratio less 1. Below 0 it is ahead.

        None at all where one of the two lacks a value: what is left would be the seeds that went well.
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
        """How many times better than another the subject is; None where one has no value."""
        mine, theirs = self.mean(self.subject), self.mean(over)
        if mine is None or theirs is None:
            return None
        return mine / max(theirs, LEAST_GOODPUT) if self.is_goodput else theirs / mine

    def row(self) -> dict[str, Any]:
        """What is told of a cell."""
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
            found |= {"loss": _short(fmean(losses)), "loss_lower_95": _short(lower_bound(losses))}
        if bound is not None and (gaps := self.losses(bound)):
            found["gap_to_bound"] = _short(fmean(gaps))
        by_name = {name: _short(self.mean(name)) for name in self.values}
        return {**found, "by_contender": by_name}


def summary(findings: Sequence[CellFindings]) -> dict[str, Any]:
    """The figures of the whole, and which of the aims are met. Keys are stable: scripts rely on them."""
    rows = [found.row() for found in findings]
    told = [row for row in rows if "loss" in row]
    worst = max(told, key=lambda row: row["loss_lower_95"], default=None)
    gaps = [row["gap_to_bound"] for row in rows if "gap_to_bound" in row]
    found: dict[str, Any] = {
        "cells": len(rows),
        "worst_vs_best_preset": None if worst is None else worst["loss_lower_95"],
        "worst_cell": None if worst is None else worst["cell"],
        "p95_vs_best": quantile([row["loss"] for row in told], 0.95) if told else None,
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
    """The cells in which the subject is behind the best preset for sure (lower bound above 0), worst first."""
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
    """Key -> the aim, what was found, and whether it is met; null where nothing was measured."""
    told = {}
    for key, (sign, aim) in AIMS.items():
        value = found[key][0] if isinstance(found[key], list) else found[key]
        met = None if value is None else value <= aim if sign == "<=" else value >= aim
        told[key] = {"aim": f"{sign} {aim}", "found": value, "met": met}
    return told


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)
