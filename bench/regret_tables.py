"""The tables of docs/regret.md: `bench/regret.py --markdown`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from bench.regret_cells import LOADS
from bench.regret_contenders import STOCK, clairvoyants
from bench.regret_statistics import AIMS
from bench.regret_targets import CLASSES, NONE

Row = Mapping[str, Any]

BAR: float = AIMS["worst_vs_best_preset"][1]
_HEADS = {NONE: "no targets: mean JCT (s)", "one": "one class: goodput", "two": "two classes: goodput"}


def tables(subject: str, rows: Sequence[Row]) -> str:
    """For each machine what is lost at each load, and every cell; `rows` are those of `summary`."""
    machines = dict.fromkeys(_place(row)[1] for row in rows)
    parts = []
    for machine in machines:
        of_it = [row for row in rows if _place(row)[1] == machine]
        parts += [f"`{machine}`", "\n".join(by_load(of_it)), "\n".join(by_cell(subject, of_it))]
    return "\n\n".join(parts)


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
    """A line for each workload and load: in each set of targets the subject, stock, the best, who is told all."""
    by_name = {row["cell"]: row for row in rows}
    sets = [classes for classes in CLASSES if any(_place(row)[3] == classes for row in rows)]
    yield f"| workload | load | {' | '.join(_HEADS[classes] for classes in sets)} |"
    yield f"|---|---|{'---|' * len(sets)}"
    for place in dict.fromkeys(_place(row)[:3] for row in rows):
        told = [_told(subject, by_name.get("/".join((*place, classes)))) for classes in sets]
        yield f"| `{place[0]}` | {place[2]} | {' | '.join(told)} |"


def _told(subject: str, row: Row | None) -> str:
    """`headway` / `vllm` / best other preset / best of those told all lengths; bold what is within the bar."""
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
