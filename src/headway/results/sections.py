"""Runs set side by side: one section per load, each policy under one name in all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.core.record import Record
from headway.results.comparison import Comparison, compare
from headway.results.metrics import summarize
from headway.results.run_folder import Run
from headway.results.summary import Summary
from headway.results.verdict import verdict

NOT_STATED = "not stated"


@dataclass(frozen=True, slots=True)
class Section:
    """The policies of all runs at one load; `load` is None where there is no sweep.

    `measured_on` says where the numbers come from: "real engine, H200", or several joined by "; ". `verdict` says in
    words which of two policies did better; "" unless there are two with the same requests, measured in one way.
    """

    load: float | None
    measured_on: str
    records: dict[str, list[Record]]
    comparison: Comparison
    verdict: str


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
    comparison = compare(summaries, records)
    origins = "; ".join(dict.fromkeys(map(_origin, runs)))
    return Section(load, origins, records, comparison, _verdict(comparison, records, runs))


def _verdict(comparison: Comparison, records: Mapping[str, Sequence[Record]], runs: Sequence[Run]) -> str:
    """The verdict, after how the runs were made; "" where that differs, or a request did not come at the same time."""
    ways = {(run.meta.measured_on, run.meta.offered) for run in runs}
    if len(ways) > 1 or not _came_alike(records.values()):
        return ""
    [(measured_on, offered)] = ways
    parts = ("in a simulation" if measured_on == "simulated" else "", f"at {offered}" if offered else "")
    circumstances = " ".join(filter(None, parts))
    return verdict(comparison, circumstances[:1].upper() + circumstances[1:])


def _came_alike(runs: Iterable[Sequence[Record]]) -> bool:
    """Whether each request that several runs had came at the same time in all of them."""
    came_s: dict[str, float] = {}
    return all(
        came_s.setdefault(record.id, record.arrival_s) == record.arrival_s
        for records in runs
        for record in records
    )


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
