"""FastServe end to end: job completion times against rate, burstiness and skew, and why gains are not the paper's."""

from __future__ import annotations

from headway.lab.policy_choice import label
from headway.results.line_chart import settings_svg
from headway.results.study import Chart, StudyPart, StudyTable, Value
from headway_reproduce.fastserve.findings import (
    Findings,
    Range,
    largest,
    mean_jct_s,
    p50_jct_s,
    p99_jct_s,
    said,
    span,
)
from headway_reproduce.fastserve.scope import (
    AXES,
    CV_AXIS,
    END_TO_END,
    RATE_AXIS,
    SCARCE_MEMORY,
    THETA_AXIS,
    VARIATIONS,
    VARIED,
    What,
)
from headway_reproduce.fastserve.setting import (
    CLUSTER,
    FASTER_TRANSFORMER,
    FASTSERVE,
    LOAD,
    LOW_LOAD,
    ORACLE,
    ORCA,
    PAPER_FT_GAIN,
    PAPER_FT_RANGES,
    PAPER_MEAN_GAIN,
    PAPER_RANGES,
    PAPER_TAIL_GAIN,
    SIMULATED,
    SYSTEMS,
    TODAY,
    Point,
)
from headway_reproduce.study_findings import Number, short, throughput_rps

AXIS_HEADINGS = {RATE_AXIS: "load (of orca's capacity)", CV_AXIS: "CV of arrivals", THETA_AXIS: "Zipf theta"}
_OVER = {ORCA: "over orca", FASTER_TRANSFORMER: "over fastertransformer", TODAY: "over vllm today"}


def axis_points(findings: Findings, axis: str) -> dict[float, Point]:
    """Setting -> point."""
    return findings.scope.end_to_end(axis, findings.capacity_rps)


def all_points(findings: Findings) -> list[Point]:
    """Every point of the three axes, once."""
    return list(dict.fromkeys(point for axis in AXES for point in axis_points(findings, axis).values()))


# ---- beside the paper ----------------------------------------------------------------------------------


def headline(findings: Findings) -> StudyPart:
    """The largest gains and their ranges, the paper's beside ours."""
    points = all_points(findings)
    tail = findings.gains(points, ORCA, p99_jct_s)
    rows: list[list[Value]] = [
        _row("mean JCT, over orca", findings.gains(points, ORCA), (1.0, PAPER_MEAN_GAIN)),
        _row("p99 JCT, over orca", tail, (None, PAPER_TAIL_GAIN)),
        _row(
            "mean JCT, over fastertransformer",
            findings.gains(points, FASTER_TRANSFORMER),
            (1.9, PAPER_FT_GAIN),
        ),
        _row("mean JCT, over vllm today", findings.gains(points, TODAY), (None, None)),
    ]
    for axis in AXES:
        found = list(axis_points(findings, axis).values())
        rows.append(_row(f"{axis}: mean JCT, over orca", findings.gains(found, ORCA), PAPER_RANGES[axis]))
        gains = findings.gains(found, FASTER_TRANSFORMER)
        rows.append(_row(f"{axis}: mean JCT, over fastertransformer", gains, PAPER_FT_RANGES[axis]))
    table = StudyTable(
        name="headline",
        title="How many times the other's job completion time is fastserve's",
        measured_on=SIMULATED,
        headings=["what", "least", "most", "paper: least", "paper: most"],
        rows=rows,
        note="1 is equal, 2 is half the time, less than 1 is longer. The paper does not say which percentile its tail "
        "is; ours is the 99th.",
    )
    text = [
        f"fastserve's mean job completion time over the grid: orca's is {said(findings.gains(points, ORCA))} as long, "
        f"in the paper up to {PAPER_MEAN_GAIN}; its 99th percentile {said(tail)}, in the paper up to "
        f"{PAPER_TAIL_GAIN}.",
        _said_of_low_load(findings),
        _said_of_static(findings),
        f"{label(ORACLE)}, which knows how long answers will be: fastserve's mean is {said(gaps_to_oracle(findings))} "
        "that one's.",
    ]
    return StudyPart(title="Beside the paper", text=text, tables=[table])


def _row(what: str, ours: Range | None, paper: tuple[float | None, float | None]) -> list[Value]:
    return [what, *(ours or (None, None)), *paper]


def _said_of_low_load(findings: Findings) -> str:
    differs = low_load_difference(findings)
    ours = "not measured" if differs is None else f"within {differs:.1%}"
    return f"At loads up to {LOW_LOAD:g} the means of fastserve and orca are equal {ours}; in the paper they are equal."


def _said_of_static(findings: Findings) -> str:
    """Why gains over static batches are what they are."""
    point = axis_points(findings, RATE_AXIS)[LOAD]
    got_rps = findings.mean(point, FASTER_TRANSFORMER, throughput_rps) or 0.0
    share = got_rps / findings.capacity_rps(END_TO_END)
    return (
        f"{FASTER_TRANSFORMER} runs each batch to the end of its longest answer, in one stage at a time, and gets "
        f"through {share:.0%} of orca's capacity: it is overloaded at every rate of the grid, and its job completion "
        "times grow with the length of the run."
    )


def low_load_difference(findings: Findings) -> float | None:
    """The largest relative difference from orca in mean JCT at low load."""
    points = axis_points(findings, RATE_AXIS)
    gains = [findings.gain(point, ORCA) for load, point in points.items() if load <= LOW_LOAD]
    found = span(abs(gain - 1) for gain in gains if gain is not None)
    return None if found is None else found[1]


def gaps_to_oracle(findings: Findings) -> Range | None:
    """fastserve's mean JCT over the oracle's, least and most."""
    found = [findings.ratio(point, FASTSERVE, ORACLE, mean_jct_s) for point in all_points(findings)]
    return span(each.mean for each in found if each is not None)


# ---- the three axes ------------------------------------------------------------------------------------


def axis_part(findings: Findings, axis: str) -> StudyPart:
    """One axis: everyone's mean and tail, and fastserve's gains."""
    points = axis_points(findings, axis)
    low, high = PAPER_RANGES[axis]
    gains = findings.gains(points.values(), ORCA)
    return StudyPart(
        title=f"Job completion time against {AXIS_HEADINGS[axis]}",
        text=[
            f"Over orca {said(gains)}; in the paper {low} to {high}.",
            *findings.unfinished(points.values(), SYSTEMS),
        ],
        tables=[_gain_table(findings, axis, points), _latency_table(findings, axis, points)],
        charts=[_chart(findings, axis, points)],
    )


def _gain_table(findings: Findings, axis: str, points: dict[float, Point]) -> StudyTable:
    rows: list[list[Value]] = []
    for setting, point in points.items():
        means = [findings.mean(point, policy, mean_jct_s) for policy in SYSTEMS]
        gains = [findings.gain(point, over) for over in _OVER]
        spread = findings.ratio(point, ORCA, FASTSERVE, mean_jct_s)
        deviation = None if spread is None else spread.deviation
        others = [findings.gain(point, ORCA, number) for number in (p50_jct_s, p99_jct_s)]
        rows.append([f"{setting:g}", *means, *gains, deviation, *others])
    return StudyTable(
        name=f"end-to-end-{axis}",
        title=f"Mean job completion time in seconds, and fastserve's gains ({CLUSTER.title})",
        measured_on=SIMULATED,
        headings=[
            AXIS_HEADINGS[axis],
            *map(label, SYSTEMS),
            *_OVER.values(),
            "± over orca",
            "p50, over orca",
            "p99, over orca",
        ],
        rows=rows,
        note="Gains are taken seed by seed; ± is their standard deviation, where there are several.",
    )


def _latency_table(findings: Findings, axis: str, points: dict[float, Point]) -> StudyTable:
    asked: tuple[tuple[str, Number], ...] = (("p99 JCT s", p99_jct_s), ("req/s", throughput_rps))
    rows: list[list[Value]] = [
        [f"{setting:g}", point.rate_rps, unit, *(findings.mean(point, policy, number) for policy in SYSTEMS)]
        for setting, point in points.items()
        for unit, number in asked
    ]
    return StudyTable(
        name=f"end-to-end-{axis}-more",
        title="Tail and throughput of every policy",
        measured_on=SIMULATED,
        headings=[AXIS_HEADINGS[axis], "offered req/s", "value", *map(label, SYSTEMS)],
        rows=rows,
        keys=3,
        detail=True,
    )


def _chart(findings: Findings, axis: str, points: dict[float, Point]) -> Chart:
    shown = [policy for policy in SYSTEMS if policy != FASTER_TRANSFORMER]
    curves = {
        label(policy): [
            (setting, findings.mean(point, policy, mean_jct_s)) for setting, point in points.items()
        ]
        for policy in shown
    }
    svg = settings_svg(
        f"Mean JCT, {CLUSTER.title}",
        curves,
        x_label=f"{AXIS_HEADINGS[axis]}, simulated",
        y_label="seconds",
        doubling=axis == CV_AXIS,
    )
    return Chart(name=f"end-to-end-{axis}", svg=svg)


# ---- what falls short ----------------------------------------------------------------------------------


def shortfall(findings: Findings) -> StudyPart | None:
    """What the gains would be with one thing changed; None where that is not run."""
    points = findings.scope.varied(findings.capacity_rps)
    if not points:
        return None
    plain = What("as it stands")
    rows: list[list[Value]] = []
    for load, point in points.items():
        for what in (plain, *VARIATIONS):
            changed = what.of(point)
            rows.append([f"{load:g}", what.name, *_gain_pair(findings, changed), *_means(findings, changed)])
    table = StudyTable(
        name="shortfall",
        title=f"fastserve's gain over orca with one thing changed ({CLUSTER.title})",
        measured_on=SIMULATED,
        headings=[
            "load",
            "changed",
            "mean JCT, over orca",
            "p99, over orca",
            *(f"{policy}, mean s" for policy in VARIED),
        ],
        rows=rows,
        note="The load is of orca's capacity as it stands, whatever is changed.",
        keys=2,
    )
    return StudyPart(
        title="Where it differs from the paper, and why",
        text=_said_of_reasons(findings, points),
        tables=[table],
    )


def _gain_pair(findings: Findings, point: Point) -> list[float | None]:
    return [findings.gain(point, ORCA), findings.gain(point, ORCA, p99_jct_s)]


def _means(findings: Findings, point: Point) -> list[float | None]:
    return [findings.mean(point, policy, mean_jct_s) for policy in VARIED]


def _said_of_reasons(findings: Findings, points: dict[float, Point]) -> list[str]:
    """Each with the numbers it is read from."""
    return [
        *(_said_of_variations(findings, load, point) for load, point in points.items()),
        _said_of_tails(findings, list(points.values())),
    ]


def _said_of_variations(findings: Findings, load: float, point: Point) -> str:
    def gain(what: What) -> str:
        return f"{findings.gain(what.of(point), ORCA) or 0.0:.2f}"

    single, reserving, scarce, longer, any_size = VARIATIONS
    return (
        f"At load {load:g} the gain over orca is {findings.gain(point, ORCA) or 0.0:.2f}. It depends on what orca can "
        f"keep running: {gain(single)} if it shares one batch among both stages, {gain(reserving)} if it reserves "
        f"2,048 tokens for each, {gain(scarce)} with {SCARCE_MEMORY:g} of the KV blocks; and {gain(any_size)} where "
        f"batches may be of any size. A run {longer.times_jobs} times as long: {gain(longer)}."
    )


def _said_of_tails(findings: Findings, points: list[Point]) -> str:
    mine = findings.gains(points, ORCA, p99_jct_s)
    ideal = [findings.ratio(point, ORCA, ORACLE, p99_jct_s) for point in points]
    return (
        "Whoever puts the short first makes the long wait: at these loads orca's p99 over all jobs is "
        f"{said(mine)} fastserve's, and {said(span(each.mean for each in ideal if each is not None))} that of the "
        "oracle, which knows who is short."
    )


# ---- what scripts read ---------------------------------------------------------------------------------


def end_to_end_data(findings: Findings) -> dict[str, object]:
    """The keys that are about the grid."""
    points = all_points(findings)
    gaps = gaps_to_oracle(findings)
    return {
        "max_mean_jct_gain_vs_orca": largest(findings.gains(points, ORCA)),
        "max_p99_jct_gain_vs_orca": largest(findings.gains(points, ORCA, p99_jct_s)),
        "gain_range": _ranges(findings, ORCA),
        "vs_fastertransformer": _ranges(findings, FASTER_TRANSFORMER),
        "vs_vllm_today": _ranges(findings, TODAY),
        "equal_at_low_load": short(low_load_difference(findings)),
        "gap_to_srpt": largest(gaps),
    }


def _ranges(findings: Findings, over: str) -> dict[str, list[float | None] | None]:
    """Axis -> least and largest gain."""
    found = {axis: findings.gains(axis_points(findings, axis).values(), over) for axis in AXES}
    return {axis: None if gains is None else [short(gain) for gain in gains] for axis, gains in found.items()}


def cells_data(findings: Findings) -> list[dict[str, object]]:
    """Every point of every axis: what it is, and each policy's mean and tail."""
    return [
        {
            "axis": axis,
            "setting": setting,
            "rate_rps": short(point.rate_rps),
            "cv": point.cv,
            **{
                policy: {
                    "mean_jct_s": short(findings.mean(point, policy, mean_jct_s)),
                    "p99_jct_s": short(findings.mean(point, policy, p99_jct_s)),
                }
                for policy in SYSTEMS
            },
            "gain_vs_orca": short(findings.gain(point, ORCA)),
        }
        for axis in AXES
        for setting, point in axis_points(findings, axis).items()
    ]
