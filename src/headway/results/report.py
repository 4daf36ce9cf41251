"""The report: runs compared at each load, in one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headway.core.record import Record
from headway.results.comparison import Comparison, compare, verdict
from headway.results.metrics import COLUMNS, Summary, summarize
from headway.results.plots import Latency, cdf_svg, queue_svg, sweep_svg, timeline_svg
from headway.results.run_folder import Run
from headway.results.svg import PALETTE
from headway.results.tables import Sheet, sheets
from headway.statistics import known

if TYPE_CHECKING:
    from jinja2 import Template


def page_template(name: str) -> Template:
    """The template of that file. A missing name is an error, and `svg` marks our own charts as safe."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        autoescape=True,
        loader=PackageLoader("headway.results", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["svg"] = Markup  # our own charts, whose text is escaped when they are drawn
    return environment.get_template(name)


NOT_STATED = "not stated"


@dataclass(frozen=True, slots=True)
class Section:
    """The policies of all runs at one load or rate scale (`load_name`); `load` is None without a sweep.

    `measured_on` is the source of the numbers: "real engine, H200", or several joined by "; ". `verdict` says in words
    which of two policies did better; "" unless there are two with the same requests, measured in one way.
    """

    load_name: str
    load: float | None
    measured_on: str
    records: dict[str, list[Record]]
    comparison: Comparison
    verdict: str


def sections(runs: Sequence[Run]) -> list[Section]:
    """Group runs by load, and by rate scale, if one of them is a sweep; otherwise all form one section.

    A policy keeps its plain name if that is unique and all runs are measured in one way; otherwise the way or the
    folder is appended.
    """
    names = _names(runs)
    swept = len({run.folder for run in runs}) < len(runs)
    by_load: dict[tuple[str, float | None], list[Run]] = {}
    for run in runs:
        load = run.meta.load if swept else None
        by_load.setdefault(("" if load is None else run.meta.load_name, load), []).append(run)
    places = sorted(by_load, key=lambda place: (place[0], place[1] or 0.0))
    return [_section(*place, by_load[place], names) for place in places]


def labelled_summaries(parts: Sequence[Section]) -> dict[str, Summary]:
    """Policy -> summary over all sections; with several, the load is part of the name: "vllm load=0.8"."""
    return {
        name if len(parts) == 1 or part.load is None else f"{name} load={part.load:g}": summary
        for part in parts
        for name, summary in part.comparison.summaries.items()
    }


def _section(
    load_name: str, load: float | None, runs: Sequence[Run], names: dict[tuple[Path, str], str]
) -> Section:
    records: dict[str, list[Record]] = {}
    summaries: dict[str, Summary] = {}
    for run in runs:
        for policy, mine in run.records.items():
            name = names[run.folder, policy]
            records[name] = mine
            summaries[name] = summarize(mine, run=run.infos[policy])
    comparison = compare(summaries, records)
    origins = "; ".join(dict.fromkeys(map(_origin, runs)))
    return Section(load_name, load, origins, records, comparison, _verdict(comparison, records, runs))


def _verdict(comparison: Comparison, records: Mapping[str, Sequence[Record]], runs: Sequence[Run]) -> str:
    """The verdict, after the circumstances; "" if these differ, or if a request did not arrive at the same time."""
    ways = {(run.meta.measured_on, run.meta.offered) for run in runs}
    if len(ways) > 1 or not _came_alike(records.values()):
        return ""
    [(measured_on, offered)] = ways
    parts = ("in a simulation" if measured_on == "simulated" else "", f"at {offered}" if offered else "")
    circumstances = " ".join(filter(None, parts))
    return verdict(comparison, circumstances[:1].upper() + circumstances[1:])


def _came_alike(runs: Iterable[Sequence[Record]]) -> bool:
    """Whether each request in several runs arrived at the same time in all of them."""
    came_s: dict[str, float] = {}
    return all(
        came_s.setdefault(record.id, record.arrival_s) == record.arrival_s
        for records in runs
        for record in records
    )


def _origin(run: Run) -> str:
    return ", ".join(filter(None, (run.meta.measured_on or NOT_STATED, run.meta.hardware)))


def _names(runs: Sequence[Run]) -> dict[tuple[Path, str], str]:
    """(folder, policy) -> the shortest kind of name that is unique."""
    kinds: list[Callable[[Run, str], str]] = [
        lambda run, policy: policy,
        lambda run, policy: f"{policy} ({run.meta.measured_on or NOT_STATED})",
        lambda run, policy: f"{policy} ({Path(run.place).name})",
        lambda run, policy: f"{policy} ({run.place})",
    ]
    if len({run.meta.measured_on for run in runs}) > 1:
        del kinds[0]  # a simulated policy always stands marked beside a measured one
    named = (
        {(run.folder, policy): kind(run, policy) for run in runs for policy in run.records} for kind in kinds
    )
    return next(names for names in named if len(set(names.values())) == len(names))


SWEEP_KEYS = (
    "goodput",
    "throughput_rps",
    "p99_ttft_s",
    "p99_tbt_s",
    "mean_jct_s",
    "mean_normalized_latency_s",
)
"""Summary keys drawn against load or rate scale, if some run has them."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A section for the template, with tables and charts."""

    heading: str
    measured_on: str
    sheets: list[Sheet]
    small: list[str]
    wide: list[str]


def render_html(runs: Sequence[Run], *, title: str = "Headway report") -> str:
    """One self-contained page about the runs: what was run, tables, charts, and what each column means.

    Equal runs give equal bytes. Strings from the runs are escaped, and the page forbids scripts and outside resources.
    """
    found = sections(runs)
    policies = list(dict.fromkeys(policy for section in found for policy in section.records))
    return page_template("report.html.j2").render(
        title=title,
        facts=_facts(runs),
        verdicts=[section.verdict for section in found if section.verdict],
        parts=[_part(section, policies, many=len(found) > 1) for section in found],
        sweeps=_sweeps(found, policies) if len(found) > 1 else [],
        colours={policy: PALETTE[index % len(PALETTE)] for index, policy in enumerate(policies)},
        columns=COLUMNS,
    )


def _facts(runs: Sequence[Run]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Folder name -> (name, value) pairs about its runs; unknown ones are left out."""
    by_folder: dict[str, list[tuple[str, str]]] = {}
    for folder in dict.fromkeys(run.folder for run in runs):
        mine = [run for run in runs if run.folder == folder]
        meta = mine[0].meta
        loads = ", ".join(
            run.meta.offered.removeprefix(f"{meta.load_name} ") for run in mine if run.meta.offered
        )
        pairs = [
            ("measured on", meta.measured_on or NOT_STATED),
            ("hardware", meta.hardware),
            ("model", meta.model),
            ("trace", meta.trace),
            (meta.load_name, loads),
            ("policies", ", ".join(dict.fromkeys(policy for run in mine for policy in run.records))),
            ("versions", ", ".join(f"{name} {version}" for name, version in meta.versions.items())),
            ("command", meta.command),
        ]
        by_folder[mine[0].place] = [(what, value) for what, value in pairs if value]
    return list(by_folder.items())


def _part(section: Section, policies: Sequence[str], *, many: bool) -> _Part:
    at = f"{section.load_name} {section.load:g}" if many and section.load is not None else ""
    where = f", {at}" if at else ""
    # every policy keeps its place, and so its colour, even where it did not run
    records = {policy: section.records.get(policy, []) for policy in policies}
    longest_s = max(
        known(summary.duration_s for summary in section.comparison.summaries.values()), default=None
    )
    return _Part(
        heading=(at.capitalize() or "No load stated") if many else "Results",
        measured_on=section.measured_on,
        sheets=sheets(section.comparison),
        small=[cdf_svg(records, latency, where=where) for latency in Latency],
        wide=[
            queue_svg(records, where=where),
            *(
                timeline_svg(policy, mine, until_s=longest_s, where=where)
                for policy, mine in section.records.items()
            ),
        ],
    )


@dataclass(frozen=True, slots=True)
class _Sweep:
    """The charts against load or rate scale, and where the policies finished different requests."""

    load_name: str
    doubtful: list[str]
    charts: list[str]


def _sweeps(found: Sequence[Section], policies: Sequence[str]) -> list[_Sweep]:
    """A sweep for each kind of load, with a chart for each measured key of SWEEP_KEYS."""
    sweeps = []
    for load_name in dict.fromkeys(section.load_name for section in found if section.load is not None):
        mine = [section for section in found if section.load_name == load_name]
        doubtful = [f"{section.load:g}" for section in mine if not section.comparison.comparable]
        sweeps.append(_Sweep(load_name, doubtful, _charts(mine, policies, load_name)))
    return sweeps


def _charts(found: Sequence[Section], policies: Sequence[str], load_name: str) -> list[str]:
    charts = []
    for key in SWEEP_KEYS:
        points: dict[str, list[tuple[float, float | None]]] = {policy: [] for policy in policies}
        for section in found:
            for policy, summary in section.comparison.summaries.items():
                if section.load is not None:
                    points[policy].append((section.load, getattr(summary, key)))
        if any(value is not None for line in points.values() for _, value in line):
            charts.append(sweep_svg(points, key, load_name))
    return charts
