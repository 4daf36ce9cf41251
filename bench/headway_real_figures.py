"""From the runs of `headway_real` to its figures and its table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.headway_real_engine import CONTROL, PRIORITY, STOCK
from bench.versus import GOODPUT, MEAN_JCT, Runs, figures, versus
from headway.core.slo import Slo

LOW_LOAD, SATURATED_LOAD = 0.5, 1.0
"""Low are loads up to the one, near saturation those from the other."""
AIMS = {GOODPUT: 1.5, MEAN_JCT: 2.0}
MOST_LOST = 0.02
OVER = {STOCK.name: "over_stock", PRIORITY.name: "over_priority"}

Cells = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By kind of clients and load."""


@dataclass(frozen=True, slots=True)
class CellRuns:
    """Every system's runs of a cell, and what the simulator says of them."""

    real: Mapping[str, Runs]
    simulated: Mapping[str, Runs]


def cell_figures(
    runs: CellRuns, own: str, best: Mapping[str, str], classes: Mapping[Slo, str]
) -> dict[str, Any]:
    """One cell: every system's figures, and what `own` has over stock, for each metric at stock's `best`.

    `control`: what stock has over itself, in mean JCT.
    """
    found: dict[str, Any] = {"systems": {name: figures(each, classes) for name, each in runs.real.items()}}
    if CONTROL.name in runs.real:
        twice = (runs.real[name].summaries() for name in (CONTROL.name, best[MEAN_JCT]))
        found["control"] = versus(MEAN_JCT, *twice)
    if own not in runs.real:
        return found
    for system, key in OVER.items():
        others = {metric: best[metric] if system == STOCK.name else system for metric in best}
        compared = {metric: other for metric, other in others.items() if other in runs.real}
        if compared:
            found[key] = {metric: _over(runs, metric, own, other) for metric, other in compared.items()}
    return found


def _over(runs: CellRuns, metric: str, own: str, other: str) -> dict[str, Any]:
    """What the one has over the other, and what the simulator says it has."""
    said = versus(metric, *(runs.simulated[name].summaries() for name in (own, other)))
    return {
        "against": other,
        **versus(metric, *(runs.real[name].summaries() for name in (own, other))),
        "simulated": {"gain": said["gain"], "loss": said["loss"]},
    }


# ---- over all cells ------------------------------------------------------------------------------------


def _comparisons(cells: Cells, key: str) -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    for kind, loads in cells.items():
        for load, cell in loads.items():
            for metric, found in cell.get(key, {}).items():
                yield kind, load, metric, found


def verdicts(cells: Cells) -> dict[str, Any]:
    """The gains over stock, whether the aims are reached, and every cell that is lost, to stock or to priority."""
    over_stock = list(_comparisons(cells, OVER[STOCK.name]))
    headline: dict[str, dict[str, dict[str, float | None]]] = {}
    for kind, load, metric, found in over_stock:
        headline.setdefault(kind, {}).setdefault(load, {})[metric] = found["gain"]
    low = [found["loss"] for _, load, _, found in over_stock if float(load) <= LOW_LOAD]
    known = [each for each in low if each is not None]
    return {
        "headline": headline,
        "aims": {metric: _aim(over_stock, metric, least) for metric, least in AIMS.items()},
        "low_load_loss": max(known) if known else None,
        "low_load_aim": MOST_LOST,
        "noise": _noise(cells),
        "losing_cells": [cell for key in OVER.values() for cell in _lost(cells, key)],
    }


def _noise(cells: Cells) -> dict[str, float]:
    """By load: how far stock is from itself in mean JCT, as a share."""
    found: dict[str, float] = {}
    for loads in cells.values():
        for load, cell in loads.items():
            lost = cell.get("control", {}).get("loss")
            if lost is not None:
                found[load] = max(abs(lost), found.get(load, 0.0))
    return found


def _aim(
    over_stock: list[tuple[str, str, str, Mapping[str, Any]]], metric: str, least: float
) -> dict[str, Any]:
    """Near saturation: the aim, and by kind and load what was reached."""
    reached = {
        f"{kind}, load {load}": found["gain"]
        for kind, load, name, found in over_stock
        if name == metric and float(load) >= SATURATED_LOAD
    }
    held = [gain is not None and gain >= least for gain in reached.values()]
    return {"at_least": least, "reached": reached, "holds": bool(held) and all(held)}


def _lost(cells: Cells, key: str) -> list[dict[str, Any]]:
    """The cells behind one of the others, the worst first."""
    lost = [
        {
            "class": kind,
            "load": float(load),
            "metric": metric,
            **{name: found[name] for name in ("against", "gain", "by_seed", "loss")},
        }
        for kind, load, metric, found in _comparisons(cells, key)
        if found["loss"] is not None and found["loss"] > 0
    ]
    return sorted(lost, key=lambda cell: -cell["loss"])


# ---- the table -----------------------------------------------------------------------------------------

_HEAD = (
    "| clients | load | goodput stock / priority / `{policy}` | gain (by seed) | simulated | mean JCT (s) stock / "
    "priority / `{policy}` | gain (by seed) | simulated | p99 JCT (s) stock / `{policy}` | p99 TTFT (s) stock / "
    "`{policy}` |"
)


def markdown(found: Mapping[str, Any]) -> str:
    """The table of docs/headway-real.md, and the sentence before it."""
    policy = found["policy"]
    lines = [
        f"Measured on {found['measured_on']}, vLLM {found['vllm']}: capacity {found['capacity_rps']:.1f} requests a "
        f"second, and before the streams {_range(found['speeds'])} times as many, {found['kv_blocks']} KV blocks, "
        f"{found['seeds']} stream{'s' * (found['seeds'] > 1)} of {found['seconds']:g} s a cell; stock's best seats: "
        f"{_seats(found['best_seats'])}. Low-load loss {_percent(found['low_load_loss'])}; losing cells: "
        f"{len(found['losing_cells'])}. Stock a second time is as far from itself in mean JCT: "
        f"{_by_load(found['noise'])}.",
        "",
        _HEAD.format(policy=policy),
        "|" + "---|" * 10,
    ]
    for kind, loads in found["cells"].items():
        lines += [_row(kind, load, cell, policy) for load, cell in loads.items()]
    return "\n".join(lines)


def _range(ascending: Sequence[float]) -> str:
    return f"{ascending[0]:.2f} to {ascending[-1]:.2f}"


def _seats(best: Mapping[str, Mapping[str, int]]) -> str:
    each = [f"{kind} {metric} {seats}" for kind, of in best.items() for metric, seats in of.items()]
    return ", ".join(each)


def _by_load(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{_percent(share)} at load {load}" for load, share in shares.items()) or "not measured"


def _row(kind: str, load: str, cell: Mapping[str, Any], policy: str) -> str:
    systems, stock = cell["systems"], cell.get("over_stock", {})

    def of(metric: str, compared: str, *, priority: bool = True) -> str:
        """A metric of stock (where it is best for the one compared), of priority, and ours."""
        if compared not in stock:
            return "–"
        names = [stock[compared]["against"], *([PRIORITY.name] if priority else []), policy]
        return " / ".join(_number(systems[name][metric]) for name in names if name in systems)

    main = GOODPUT if GOODPUT in stock else MEAN_JCT
    return (
        f"| {kind} | {load} | {of(GOODPUT, GOODPUT)} | {_gain(stock, GOODPUT)} | {of(MEAN_JCT, MEAN_JCT)} | "
        f"{_gain(stock, MEAN_JCT)} | {of('p99_jct_s', main, priority=False)} | "
        f"{of('p99_ttft_s', main, priority=False)} |"
    )


def _gain(stock: Mapping[str, Any], metric: str) -> str:
    """Two cells of the table: the gain with its range by seed, and the simulator's."""
    if metric not in stock:
        return "– | –"
    found = stock[metric]
    seeds = [each for each in found["by_seed"] if each is not None]
    ends = f" ({min(seeds):.2f} to {max(seeds):.2f})" if seeds else ""
    return f"{_number(found['gain'])}{ends} | {_number(found['simulated']['gain'])}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"
