"""AdaptiveLLM's throughput: Table 3, Fig. 3, its two halves alone, and why gains differ from the paper's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headway.results.line_chart import settings_svg
from headway.results.study import Chart, StudyPart, StudyTable, Value
from headway_reproduce.adaptivellm.findings import (
    COUNTERS,
    GAIN_HEADINGS,
    GAINS,
    Findings,
    file_name,
    output_tps,
)
from headway_reproduce.adaptivellm.scope import VARIATIONS, What, varied
from headway_reproduce.adaptivellm.setting import (
    ABLATIONS,
    ADAPTIVE,
    BASELINE,
    EXACT,
    GROUPS,
    HOST_BLOCKS,
    LARGE_HOST_BLOCKS,
    MAIN,
    PAPER_TABLE_3,
    PLUS,
    SIMULATED,
    TABLE_LIMIT,
    Group,
    Point,
)
from headway_reproduce.study_findings import Number, short, throughput_rps

PAPER_KEYS = ("vs_recompute", "vs_swap")
"""Of GAINS, in the order of PAPER_TABLE_3's pairs."""

# ---- Table 3 -------------------------------------------------------------------------------------------


def table_3(findings: Findings) -> StudyPart:
    """Throughput at the longest output of 64, the paper's and ours."""
    table = StudyTable(
        name="table3",
        title=f"Throughput of adaptivellm over others (Table 3: longest output {TABLE_LIMIT})",
        measured_on=SIMULATED,
        headings=["group", *_table_3_headings()],
        rows=[_table_3_row(findings, group) for group in GROUPS],
        note="All policies serve the same requests, so ratios are the same in requests and in tokens a second. "
        "Counts are of adaptivellm; host full: recomputes of victims for which the host had no room.",
    )
    said = [_said_of_gains(findings, place) for place in range(len(PAPER_KEYS))]
    missing = findings.unfinished(findings.scope.table_points(), MAIN)
    return StudyPart(title="Throughput (Table 3)", text=[*said, *missing], tables=[table])


def _table_3_headings() -> list[str]:
    beside = [[GAIN_HEADINGS[key], "paper"] if key in PAPER_KEYS else [GAIN_HEADINGS[key]] for key in GAINS]
    return [*(heading for pair in beside for heading in pair), *(name.replace("_", " ") for name in COUNTERS)]


def _table_3_row(findings: Findings, group: Group) -> list[Value]:
    point, row = Point(group=group), list[Value]()
    for key in GAINS:
        row.append(findings.gain(point, key))
        if key in PAPER_KEYS:
            row.append(PAPER_TABLE_3[str(group)][PAPER_KEYS.index(key)])
    return [str(group), *row, *(round(findings.count(point, ADAPTIVE, name)) for name in COUNTERS)]


def _said_of_gains(findings: Findings, place: int) -> str:
    key = PAPER_KEYS[place]
    gains = {group: findings.gain(Point(group=group), key) or 0.0 for group in GROUPS}
    paper = {group: PAPER_TABLE_3[str(group)][place] for group in GROUPS}
    reached = sum(gains[group] >= paper[group] for group in GROUPS)
    return (
        f"adaptivellm {GAIN_HEADINGS[key]}: {min(gains.values()):.2f} to {max(gains.values()):.2f} times; in the "
        f"paper {min(paper.values()):.2f} to {max(paper.values()):.2f}. {reached} of {len(GROUPS)} groups gain as "
        "much as there."
    )


def table_3_data(findings: Findings) -> dict[str, object]:
    """Group -> gains, the paper's two, and counts."""
    return {
        str(group): {
            **_gains_data(findings, Point(group=group)),
            "paper": PAPER_TABLE_3[str(group)],
            **{name: short(findings.count(Point(group=group), ADAPTIVE, name)) for name in COUNTERS},
        }
        for group in GROUPS
    }


def _gains_data(findings: Findings, point: Point) -> dict[str, float | None]:
    return {key: short(findings.gain(point, key)) for key in GAINS}


# ---- Figure 3 ------------------------------------------------------------------------------------------


def figure_3(findings: Findings) -> StudyPart:
    """Throughput against the longest output."""
    scope = findings.scope
    tables = [_gains_table(findings, kind) for kind in scope.kinds()]
    return StudyPart(
        title="Throughput against the longest output (Fig. 3)",
        text=[_said_of_shape(findings, kind) for kind in scope.kinds()],
        tables=[*tables, _throughput_table(findings)],
        charts=[_gain_chart(findings, group) for group in scope.groups()],
    )


def _gains_table(findings: Findings, kind: str) -> StudyTable:
    points = [point for point in findings.scope.sweep_points() if point.lengths == kind]
    rows: list[list[Value]] = []
    for point in points:
        spread = findings.ratio(point, *GAINS["vs_recompute"], throughput_rps)
        gains = [findings.gain(point, key) for key in GAINS]
        rows.append([str(point.group), point.limit, *gains, None if spread is None else spread.deviation])
    lengths = "exactly the longest (control)" if kind == EXACT else "of their natural length"
    return StudyTable(
        name=f"fig3-{kind}",
        title=f"Throughput of adaptivellm over others, outputs {lengths}",
        measured_on=SIMULATED,
        headings=["group", "longest output", *GAIN_HEADINGS.values(), "± over vllm-v0"],
        rows=rows,
        note="± is the standard deviation over seeds, where there are several.",
        keys=2,
        detail=True,
    )


def _throughput_table(findings: Findings) -> StudyTable:
    rows: list[list[Value]] = []
    units: tuple[tuple[str, Number], ...] = (("req/s", throughput_rps), ("output tok/s", output_tps))
    for point in dict.fromkeys([*findings.scope.table_points(), *findings.scope.sweep_points()]):
        for unit, number in units:
            values = [findings.mean(point, policy, number) for policy in MAIN]
            rows.append([str(point.group), point.limit, point.lengths, unit, *values])
    return StudyTable(
        name="throughput",
        title="Throughput of every policy",
        measured_on=SIMULATED,
        headings=["group", "longest output", "lengths", "unit", *MAIN],
        rows=rows,
        keys=4,
        detail=True,
    )


def _gain_chart(findings: Findings, group: Group) -> Chart:
    limits = findings.scope.limits()
    curves = {
        heading: [(float(limit), findings.gain(Point(group=group, limit=limit), key)) for limit in limits]
        for key, heading in GAIN_HEADINGS.items()
    }
    paper = zip(PAPER_KEYS, PAPER_TABLE_3[str(group)], strict=True)
    svg = settings_svg(
        f"{group}: throughput of adaptivellm",
        curves,
        x_label="longest output (tokens), simulated",
        y_label="times the other's",
        published={GAIN_HEADINGS[key]: (float(TABLE_LIMIT), gain) for key, gain in paper},
        level=1.0,
    )
    return Chart(name=f"fig3-{file_name(group)}", svg=svg)


def _said_of_shape(findings: Findings, kind: str) -> str:
    peaks: Counter[int] = Counter()
    groups, limits = findings.scope.groups(), findings.scope.limits()
    for group in groups:
        gains = {
            limit: findings.gain(Point(group=group, limit=limit, lengths=kind), "vs_recompute") or 0.0
            for limit in limits
        }
        peaks[max(limits, key=lambda limit, gains=gains: gains[limit])] += 1  # type: ignore[misc]
    where = ", ".join(f"at {limit} in {peaks[limit]}" for limit in sorted(peaks))
    return (
        f"Outputs of {kind} length: the gain over vllm-v0 is largest {where} of {len(groups)} groups; in the paper "
        "it is little at short outputs, largest in the middle and less at long ones."
    )


def figure_3_data(findings: Findings) -> dict[str, object]:
    """Group -> lengths -> longest output -> gains."""
    data: dict[str, dict[str, dict[str, object]]] = {}
    for point in findings.scope.sweep_points():
        by_kind = data.setdefault(str(point.group), {}).setdefault(point.lengths, {})
        by_kind[str(point.limit)] = _gains_data(findings, point)
    return dict(data)


# ---- each half alone, and what falls short -------------------------------------------------------------


def ablations(findings: Findings) -> StudyPart | None:
    """What each half of the system brings alone; None where that is not run."""
    points = findings.scope.ablation_points()
    if not points:
        return None
    policies = (*ABLATIONS, ADAPTIVE, PLUS)
    rows: list[list[Value]] = []
    for point in points:
        gains = [findings.ratio(point, policy, BASELINE, throughput_rps) for policy in policies]
        rows.append([str(point.group), *(None if gain is None else gain.mean for gain in gains)])
    table = StudyTable(
        name="ablations",
        title=f"Throughput over vllm-v0, longest output {TABLE_LIMIT}",
        measured_on=SIMULATED,
        headings=["group", *policies],
        rows=rows,
        note="fairness: its start scheduling, recompute always; memory: its choice of swap or recompute, in order of "
        "arrival; predict-only: predicts, then always recomputes.",
    )
    return StudyPart(title="Ablations", tables=[table])


def shortfall(findings: Findings) -> StudyPart:
    """What Table 3's gains would be with one thing changed."""
    rows: list[list[Value]] = []
    for group in findings.scope.groups():
        ours, theirs = PAPER_TABLE_3[str(group)]
        gains = [_varied_gain(findings, Point(group=group), what) for what in VARIATIONS]
        rows.append([str(group), findings.gain(Point(group=group), "vs_recompute"), *gains, ours / theirs])
    table = StudyTable(
        name="shortfall",
        title=f"Throughput over that of vllm-v0 as in Table 3, one thing changed; longest output {TABLE_LIMIT}",
        measured_on=SIMULATED,
        headings=[
            "group",
            "adaptivellm",
            *(what.name for what in VARIATIONS),
            "paper: vllm-s over vllm",
        ],
        rows=rows,
        note="Memory only: the choice of swap or recompute, in order of arrival. Never full: "
        f"{LARGE_HOST_BLOCKS:,} host blocks. Half the device's blocks: {HOST_BLOCKS}, as many as the host has.",
    )
    return StudyPart(title="Where it falls short, and why", text=_said_of_shortfall(findings), tables=[table])


def _varied_gain(findings: Findings, point: Point, what: What) -> float | None:
    """Over the baseline with the same requests: a variation may have fewer seeds."""
    return findings.ratio_across(varied(point, what), what.policy, point, BASELINE, throughput_rps)


def _said_of_shortfall(findings: Findings) -> list[str]:
    """The reasons, each with the numbers it is read from."""
    points = [Point(group=group) for group in findings.scope.groups()]
    recomputes = sum(findings.count(point, ADAPTIVE, "recomputes") for point in points)
    full = sum(findings.count(point, ADAPTIVE, "host_full") for point in points)
    paper = [PAPER_TABLE_3[str(point.group)] for point in points]
    memory, *_, halved = (
        [_varied_gain(findings, point, what) or 0.0 for point in points] for what in VARIATIONS
    )
    return [
        "With all requests at 0 s the priority, time waited over length, ranks by length alone: the longest are "
        "preempted first and come back last, so they fill the host and stay there. "
        f"{full / max(1.0, recomputes):.0%} of adaptivellm's recomputes found the host full.",
        f"Its choice of swap or recompute alone, in order of arrival (memory only), comes to {_range(memory)} times "
        "vllm-v0; its order of starts costs throughput and gains turnaround.",
        f"The paper's vllm-s runs at {_range([a / b for a, b in paper])} of its vllm. Ours, which admits as long as "
        "victims find room on the host, runs faster than vllm-v0; with half the device's blocks, as if all who run "
        f"had to find room there at once, at {_range(halved)} of it.",
    ]


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"
