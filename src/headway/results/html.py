"""The report: one HTML file that holds everything it shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.results.metrics import measured
from headway.results.page import page_template
from headway.results.plots import Latency, cdf_svg, queue_svg, sweep_svg, timeline_svg
from headway.results.run_folder import Run
from headway.results.sections import NOT_STATED, Section, sections
from headway.results.summary import COLUMNS
from headway.results.svg import PALETTE
from headway.results.tables import Sheet, sheets

SWEEP_KEYS = (
    "goodput",
    "throughput_rps",
    "p99_ttft_s",
    "p99_tbt_s",
    "mean_jct_s",
    "mean_normalized_latency_s",
)
"""Summary keys drawn against load, where some run has them."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A section as the template shows it: tables and charts ready."""

    heading: str
    measured_on: str
    sheets: list[Sheet]
    small: list[str]
    wide: list[str]


def render_html(runs: Sequence[Run], *, title: str = "Headway report") -> str:
    """One self-contained page about the runs: what was run, tables, charts, and what each column means.

    The same runs give the same bytes. Strings from the runs are escaped, and the page forbids scripts and
    outside resources.
    """
    found = sections(runs)
    policies = list(dict.fromkeys(policy for section in found for policy in section.records))
    return page_template("report.html.j2").render(
        title=title,
        facts=_facts(runs),
        verdicts=[section.verdict for section in found if section.verdict],
        parts=[_part(section, policies, many=len(found) > 1) for section in found],
        sweep=_sweep(found, policies) if len(found) > 1 else [],
        doubtful=[
            f"{part.load:g}" for part in found if part.load is not None and not part.comparison.comparable
        ],
        colours={policy: PALETTE[index % len(PALETTE)] for index, policy in enumerate(policies)},
        columns=COLUMNS,
    )


def _facts(runs: Sequence[Run]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Folder name -> (what, value) pairs about its runs; what was not stated is left out."""
    by_folder: dict[str, list[tuple[str, str]]] = {}
    for folder in dict.fromkeys(run.folder for run in runs):
        mine = [run for run in runs if run.folder == folder]
        meta = mine[0].meta
        loads = ", ".join(run.meta.offered.removeprefix("load ") for run in mine if run.meta.offered)
        pairs = [
            ("measured on", meta.measured_on or NOT_STATED),
            ("hardware", meta.hardware),
            ("model", meta.model),
            ("trace", meta.trace),
            ("offered load", loads),
            ("policies", ", ".join(dict.fromkeys(policy for run in mine for policy in run.records))),
            ("versions", ", ".join(f"{name} {version}" for name, version in meta.versions.items())),
            ("command", meta.command),
        ]
        by_folder[mine[0].place] = [(what, value) for what, value in pairs if value]
    return list(by_folder.items())


def _part(section: Section, policies: Sequence[str], *, many: bool) -> _Part:
    where = f", load {section.load:g}" if many and section.load is not None else ""
    # every policy keeps its place, and so its colour, where it did not run
    records = {policy: section.records.get(policy, []) for policy in policies}
    longest_s = max(
        measured(summary.duration_s for summary in section.comparison.summaries.values()), default=None
    )
    heading = "Results"
    if many:
        heading = f"Load {section.load:g}" if section.load is not None else "No load stated"
    return _Part(
        heading=heading,
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


def _sweep(found: Sequence[Section], policies: Sequence[str]) -> list[str]:
    """A chart per key of SWEEP_KEYS that was measured somewhere."""
    charts = []
    for key in SWEEP_KEYS:
        points: dict[str, list[tuple[float, float | None]]] = {policy: [] for policy in policies}
        for section in found:
            for policy, summary in section.comparison.summaries.items():
                if section.load is not None:
                    points[policy].append((section.load, getattr(summary, key)))
        if any(value is not None for line in points.values() for _, value in line):
            charts.append(sweep_svg(points, key))
    return charts
