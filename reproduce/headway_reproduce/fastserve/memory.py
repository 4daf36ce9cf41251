"""FastServe's KV management against others, against the slots it keeps free (Fig. 11), and its peak of KV."""

from __future__ import annotations

from headway.results.line_chart import settings_svg
from headway.results.study import Chart, StudyPart, StudyTable, Value
from headway_reproduce.fastserve.findings import (
    Findings,
    largest,
    mean_jct_s,
    p99_jct_s,
    said,
    sensitivity,
)
from headway_reproduce.fastserve.scope import CV_AXIS, RATE_AXIS
from headway_reproduce.fastserve.setting import (
    DEFER,
    FASTSERVE,
    FCFS,
    OVERLOAD,
    PAPER_DEFER_GAIN,
    PAPER_PEAK_KV,
    PAPER_REACTIVE_GAIN,
    PAPER_V3_REACTIVE_GAIN,
    PAPER_V3_RECOMPUTE_GAIN,
    REACTIVE,
    RECOMPUTE,
    SIMULATED,
    SINGLE,
    SMALL,
    Point,
)
from headway_reproduce.study_findings import ratio, short

MEMORY_AXES = {RATE_AXIS: "load (of orca's capacity)", CV_AXIS: "CV of arrivals"}
_PAPER = {
    DEFER: f"up to {PAPER_DEFER_GAIN}",
    REACTIVE: f"up to {PAPER_REACTIVE_GAIN}, in its later version {PAPER_V3_REACTIVE_GAIN}",
    RECOMPUTE: f"in its later version up to {PAPER_V3_RECOMPUTE_GAIN}",
}


def _points(findings: Findings) -> dict[str, dict[float, Point]]:
    """Axis -> setting -> point, of the axes that are run."""
    found = {axis: findings.scope.memory(axis, findings.capacity_rps) for axis in MEMORY_AXES}
    return {axis: points for axis, points in found.items() if points}


def memory_part(findings: Findings) -> StudyPart:
    """Four ways with KV, the slots kept free, and how much KV there is at once."""
    axes = _points(findings)
    others = findings.scope.memories()[1:]
    points = list(dict.fromkeys(point for found in axes.values() for point in found.values()))
    gains = {over: findings.gains(points, over) for over in others}
    text = [f"Over {over}: {said(gains[over])}; in the paper {_PAPER[over]}." for over in others]
    return StudyPart(
        title="KV management alone (Fig. 11)",
        text=[*text, _said_of_slots(findings), *findings.unfinished(points, findings.scope.memories())],
        tables=[
            *(_axis_table(findings, axis, found) for axis, found in axes.items()),
            _slots_table(findings),
            _peak_table(findings),
        ],
        charts=[_chart(findings, axis, found) for axis, found in axes.items()],
    )


def _axis_table(findings: Findings, axis: str, points: dict[float, Point]) -> StudyTable:
    policies = findings.scope.memories()
    rows: list[list[Value]] = []
    for setting, point in points.items():
        means = [findings.mean(point, policy, mean_jct_s) for policy in policies]
        gains = [findings.gain(point, over) for over in policies[1:]]
        swaps = [round(findings.count(point, policy, "swaps")) for policy in (FASTSERVE, REACTIVE)]
        rows.append([f"{setting:g}", *means, *gains, *swaps])
    return StudyTable(
        name=f"fig11-{axis}",
        title=f"Mean job completion time in seconds, and fastserve's gains ({SINGLE.title})",
        measured_on=SIMULATED,
        headings=[
            MEMORY_AXES[axis],
            *policies,
            *(f"over {over}" for over in policies[1:]),
            f"swaps, {FASTSERVE}",
            f"swaps, {REACTIVE}",
        ],
        rows=rows,
    )


def _chart(findings: Findings, axis: str, points: dict[float, Point]) -> Chart:
    curves = {
        policy: [(setting, findings.mean(point, policy, mean_jct_s)) for setting, point in points.items()]
        for policy in findings.scope.memories()
    }
    svg = settings_svg(
        f"Mean JCT, {SINGLE.title}",
        curves,
        x_label=f"{MEMORY_AXES[axis]}, simulated",
        y_label="seconds",
        doubling=axis == CV_AXIS,
    )
    return Chart(name=f"fig11-{axis}", svg=svg)


# ---- slots kept free -----------------------------------------------------------------------------------

_SLOT_NAMES = {"idle_jobs": "K, slots kept free", "burst_levels": "K', levels that foretell a burst"}


def _slots_table(findings: Findings) -> StudyTable:
    rows: list[list[Value]] = [
        [
            _SLOT_NAMES[name],
            value,
            findings.mean(point, FASTSERVE, mean_jct_s),
            findings.mean(point, FASTSERVE, p99_jct_s),
            round(findings.count(point, FASTSERVE, "swaps")),
        ]
        for (name, value), point in findings.scope.slot_points(findings.capacity_rps).items()
    ]
    return StudyTable(
        name="slots",
        title=f"Slots that fastserve keeps free, at load {OVERLOAD:g} ({SINGLE.title})",
        measured_on=SIMULATED,
        headings=["setting", "value", "mean JCT s", "p99 JCT s", "swaps"],
        rows=rows,
        note="One is varied, the other as it stands: K a batch, K' 2.",
        keys=2,
    )


def slots_data(findings: Findings) -> dict[str, dict[str, float | None]]:
    """Setting -> value -> mean JCT in seconds."""
    found: dict[str, dict[str, float | None]] = {name: {} for name in _SLOT_NAMES}
    for (name, value), point in findings.scope.slot_points(findings.capacity_rps).items():
        found[name][str(value)] = short(findings.mean(point, FASTSERVE, mean_jct_s))
    return found


def k_sensitivity(findings: Findings) -> float | None:
    """The largest mean JCT over the least among the values of K."""
    return short(sensitivity(slots_data(findings)["idle_jobs"].values()))


def _said_of_slots(findings: Findings) -> str:
    data = {name: values for name, values in slots_data(findings).items() if values}
    shown = " and ".join(
        f"{sensitivity(values.values()) or 1.0:.2f} among {len(values)} values of {_SLOT_NAMES[name].split(',')[0]}"
        for name, values in data.items()
    )
    return f"Largest mean over least: {shown}. In the paper both hardly matter."


# ---- how much KV there is at once ----------------------------------------------------------------------


def _peak_table(findings: Findings) -> StudyTable:
    rows: list[list[Value]] = []
    for name, point in findings.scope.peaks(findings.capacity_rps).items():
        theirs, ours = (findings.count(point, policy, "peak_kv_blocks") for policy in (FCFS, FASTSERVE))
        rows.append([name, round(theirs), round(ours), ratio(ours, theirs), PAPER_PEAK_KV])
    return StudyTable(
        name="peak-kv",
        title=f"Most KV blocks at once, on the device and the host ({SMALL.title})",
        measured_on=SIMULATED,
        headings=["arrivals", FCFS, FASTSERVE, "times", "paper: up to"],
        rows=rows,
        note="Answers of up to 20 tokens. The paper gives the rate and the CV, not its engine's batch.",
    )


def peak_kv(findings: Findings) -> float | None:
    """fastserve's peak of KV over that of first come, first served, in the paper's setting."""
    point = next(iter(findings.scope.peaks(findings.capacity_rps).values()))
    found = findings.ratio(point, FASTSERVE, FCFS, lambda result: float(result.meter.peak_kv_blocks))
    return None if found is None else short(found.mean)


def memory_data(findings: Findings) -> dict[str, object]:
    """The keys that are about memory."""
    points = [point for found in _points(findings).values() for point in found.values()]
    return {
        "vs_defer": largest(findings.gains(points, DEFER)),
        "vs_reactive": largest(findings.gains(points, REACTIVE)),
    }
