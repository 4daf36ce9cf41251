"""Runs set side by side: one section per load, each policy under one name in all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.core.record import Record
from headway.results.comparison import Comparison, compare
from headway.results.metrics import summarize
from headway.results.run_folder import Run
from headway.results.summary import Summary

NOT_STATED = "not stated"


@dataclass(frozen=True, slots=True)
class Section:
    """The policies of all runs at one load; `load` is None where there is no sweep.

    `measured_on` says where the numbers come from: "real engine, H200", or several joined by "; ".
    """

    load: float | None
    measured_on: str
    records: dict[str, list[Record]]
    comparison: Comparison


def sections(runs: Sequence[Run]) -> list[Section]:
    """Runs grouped by load where one of them is a sweep, else all side by side.

    A policy keeps its plain name where that is unique and all runs are measured in one way; otherwise it is
    followed by how it was measured, or by its folder.
    """
    names = _names(runs)
    swept = len({run.folder for run in runs}) < len(runs)
    loads = list(dict.fromkeys(run.meta.load if swept else None for run in runs))
    if swept:
        loads.sort(key=lambda load: (load is not None, load))
    return [
        _section(load, [run for run in runs if not swept or run.meta.load == load], names) for load in loads
    ]


def labelled_summaries(parts: Sequence[Section]) -> dict[str, Summary]:
    """Policy -> summary over all sections; with several, the load is part of the name: "vllm load=0.8"."""
    return {
        name if len(parts) == 1 or part.load is None else f"{name} load={part.load:g}": summary
        for part in parts
        for name, summary in part.comparison.summaries.items()
    }


def _section(load: float | None, runs: Sequence[Run], names: dict[tuple[Path, str], str]) -> Section:
    records: dict[str, list[Record]] = {}
    summaries: dict[str, Summary] = {}
    for run in runs:
        for policy, mine in run.records.items():
            name = names[run.folder, policy]
            records[name] = mine
            summaries[name] = summarize(mine, run=run.infos[policy])
    return Section(load, "; ".join(dict.fromkeys(map(_origin, runs))), records, compare(summaries, records))


def _origin(run: Run) -> str:
    return ", ".join(filter(None, (run.meta.measured_on or NOT_STATED, run.meta.hardware)))


def _names(runs: Sequence[Run]) -> dict[tuple[Path, str], str]:
    """(folder, policy) -> the shortest kind of name that tells all of them apart."""
    kinds: list[Callable[[Run, str], str]] = [
        lambda run, policy: policy,
        lambda run, policy: f"{policy} ({run.meta.measured_on or NOT_STATED})",
        lambda run, policy: f"{policy} ({Path(run.place).name})",
        lambda run, policy: f"{policy} ({run.place})",
    ]
    if len({run.meta.measured_on for run in runs}) > 1:
        del kinds[0]  # a simulated policy never stands unmarked beside a measured one
    named = (
        {(run.folder, policy): kind(run, policy) for run in runs for policy in run.records} for kind in kinds
    )
    return next(names for names in named if len(set(names.values())) == len(names))
