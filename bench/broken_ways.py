"""Predictions made useless on purpose: in which ways, against whom, and what it may cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.governor_watch import Change, shares
from bench.versus import Runs, figures, loss, mean, values
from headway.core.slo import Slo

REFERENCES = ("fastserve", "sarathi")
"""What needs no predictions."""
MOST_BEHIND = 0.03
WRONG_BY = 3.0


@dataclass(frozen=True, slots=True)
class Way:
    """Who predicts lengths, and how many times as long as they take steps are said to take."""

    name: str
    predictor: str
    steps: float = 1.0


def ways(honest: str) -> tuple[Way, ...]:
    """All of them, and beside them the predictor that is not broken."""
    random = "broken:way=random"
    return (
        Way("honest", honest),
        Way("random lengths", random),
        Way("steps x 3", honest, WRONG_BY),
        Way("steps / 3", honest, 1 / WRONG_BY),
        Way("random lengths, steps x 3", random, WRONG_BY),
        Way("random lengths, steps / 3", random, 1 / WRONG_BY),
    )


def governor_figures(changes: Sequence[Sequence[Change]], ends_s: Sequence[float]) -> dict[str, Any]:
    """Of several runs: what the governor went by for which share of the time, and its steps in the first."""
    by_run = [shares(each, end_s) for each, end_s in zip(changes, ends_s, strict=True)]
    names = sorted({name for each in by_run for name in each})
    return {
        "share_of_time": {name: mean([each.get(name, 0.0) for each in by_run]) for name in names},
        "steps": [len(each) - 1 for each in changes],
        "first_run": [{"at_s": round(change.at_s, 3), "goes_by": change.goes_by} for change in changes[0]],
    }


def broken_cell(
    metric: str, runs: Mapping[str, Runs], governor: Mapping[str, Any], classes: Mapping[Slo, str]
) -> dict[str, Any]:
    """One cell: every system's figures, and how far each way is behind the better of the references.

    `behind` is below 0 where it is ahead; None where nothing was measured.
    """
    found = {name: mean(values(each.summaries(), metric)) for name, each in runs.items()}
    behind = {
        name: {other: loss(metric, found[name], found[other]) for other in REFERENCES}
        for name in runs
        if name not in REFERENCES
    }
    return {
        "metric": metric,
        "systems": {name: figures(each, classes) for name, each in runs.items()},
        "behind_each": behind,
        "behind": {name: _worst(list(each.values())) for name, each in behind.items()},
        "governor": dict(governor),
    }


def _worst(losses: Sequence[float | None]) -> float | None:
    known = [each for each in losses if each is not None]
    return max(known) if known else None


def broken_verdicts(cells: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """The worst of all cells, by way, and the cells that are farther behind than they may be."""
    every = [
        (f"{kind}, load {load}", way, behind)
        for kind, loads in cells.items()
        for load, cell in loads.items()
        for way, behind in cell["behind"].items()
        if behind is not None
    ]
    return {
        "worst_behind": {
            way: max(behind for _, name, behind in every if name == way)
            for way in dict.fromkeys(name for _, name, _ in every)
        },
        "most_behind": MOST_BEHIND,
        "holds": all(behind <= MOST_BEHIND for _, _, behind in every),
        "exceptions": [
            {"cell": cell, "way": way, "behind": behind}
            for cell, way, behind in every
            if behind > MOST_BEHIND
        ],
    }


def broken_table(found: Mapping[str, Any]) -> str:
    """The table of docs/headway-real.md: a row for each cell, a column for each way."""
    first = next(iter(next(iter(found["cells"].values())).values()))
    names = list(first["behind"])
    head = " | ".join(("clients | load | metric", *(f"`{name}`" for name in REFERENCES), *names))
    lines = [f"| {head} |", "|" + "---|" * (3 + len(REFERENCES) + len(names))]
    for kind, loads in found["cells"].items():
        lines += [_row(kind, load, cell, names) for load, cell in loads.items()]
    return "\n".join(lines)


def _row(kind: str, load: str, cell: Mapping[str, Any], names: Sequence[str]) -> str:
    metric, systems = cell["metric"], cell["systems"]
    values = [_number(systems[name][metric]) for name in REFERENCES]
    values += [f"{_number(systems[name][metric])} ({_percent(cell['behind'][name])})" for name in names]
    return f"| {kind} | {load} | {metric} | {' | '.join(values)} |"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _percent(behind: float | None) -> str:
    return "–" if behind is None else f"{100 * behind:+.1f} %"
