"""Magnus's threshold, the toy, and what its figures depend on: one thing changed at a time."""

from __future__ import annotations

from statistics import fmean

from headway.results.study import StudyPart, StudyTable, Value
from headway_reproduce.magnus.data import load_tasks
from headway_reproduce.magnus.engine import Toy, toy
from headway_reproduce.magnus.findings import GAINS, Findings, number
from headway_reproduce.magnus.run import UNCHANGED, Change
from headway_reproduce.magnus.scope import Point
from headway_reproduce.magnus.setting import (
    CCB,
    MAGNUS,
    PAPER_TOY_MAGNUS_S,
    PAPER_TOY_RATIO,
    PAPER_TOY_VS_S,
    PHI,
    PHI_SEED,
    SIMULATED,
    VS,
)
from headway_reproduce.study_findings import short

_SWEPT = ("throughput_rps", "mean_rt_s", "p95_rt_s", "mean_batch", "oom")


def phi_part(findings: Findings) -> StudyPart:
    """Magnus under each threshold."""
    points = findings.scope.phis()
    rows: list[list[Value]] = [
        [f"{point.load:g}", f"{point.phi:,}", *(findings.mean(point, MAGNUS, number(key)) for key in _SWEPT)]
        for point in points
    ]
    table = StudyTable(
        name="phi",
        title="The threshold of wasted memory access, Phi",
        measured_on=SIMULATED,
        headings=[
            "load, of vs's capacity",
            "Phi",
            "requests/s",
            "mean response time, s",
            "95th percentile, s",
            "mean batch",
            "batches out of memory",
        ],
        rows=rows,
        note=f"Seed {PHI_SEED}, which nothing else is run with. The paper does not give its value.",
        keys=2,
    )
    text = f"All else is run with Phi {PHI:,}. Least mean response time: {_best_said(findings)}."
    return StudyPart(title="Phi", text=[text], tables=[table])


def _best_said(findings: Findings) -> str:
    best: dict[float, Point] = {}
    for point in findings.scope.phis():
        if point.load not in best or _mean_rt_s(findings, point) < _mean_rt_s(findings, best[point.load]):
            best[point.load] = point
    return ", ".join(f"{point.phi:,} at load {load:g}" for load, point in best.items())


def _mean_rt_s(findings: Findings, point: Point) -> float:
    return findings.mean(point, MAGNUS, number("mean_rt_s")) or 0.0


def phi_data(findings: Findings) -> dict[str, object]:
    """Load -> Phi -> numbers; and which is used."""
    data: dict[str, dict[str, object]] = {}
    for point in findings.scope.phis():
        data.setdefault(f"{point.load:g}", {})[str(point.phi)] = {
            key: short(findings.mean(point, MAGNUS, number(key))) for key in _SWEPT
        }
    return {"used": PHI, "seed": PHI_SEED, "by_load": data}


# ---- the toy -------------------------------------------------------------------------------------------


def toy_part() -> StudyPart:
    """21 requests on one instance, the paper's seconds beside ours."""
    found, in_place = toy(), toy(copies=False)
    table = StudyTable(
        name="toy",
        title="18 small requests and 3 large ones on one instance (section II)",
        measured_on="simulated, V100 32 GB",
        headings=["engine", "vs, s", "magnus, s", "ratio", "fitted overhead, ms a step"],
        rows=[
            _toy_row("paper", None),
            _toy_row("as it stands", found),
            _toy_row("a cache that is written in place", in_place),
        ],
        note="Small: 10 tokens in and out; large: 1,000. Each batch of vs holds one large request; magnus serves "
        "a batch of 18 and one of 3.",
    )
    text = (
        f"The overhead of a step is the one constant that was fitted, to vs's {PAPER_TOY_VS_S:g} s: "
        f"{1e3 * found.fitted_overhead_s:.1f} ms. The ratio is {found.ratio:.2f}, in the paper {PAPER_TOY_RATIO:.1f}. "
        "Three batches of 1,000 steps against one make 3; the rest is that a step of 7 long contexts costs more than "
        "one of 3, in attention and in copying the cache."
    )
    return StudyPart(title="The toy", text=[text], tables=[table])


def _toy_row(name: str, found: Toy | None) -> list[Value]:
    if found is None:
        return [name, PAPER_TOY_VS_S, PAPER_TOY_MAGNUS_S, PAPER_TOY_RATIO, None]
    return [name, found.vs_s, found.magnus_s, found.ratio, 1e3 * found.fitted_overhead_s]


def toy_data() -> dict[str, float | None]:
    """What scripts read."""
    found = toy()
    return {
        "vs_s": short(found.vs_s),
        "magnus_s": short(found.magnus_s),
        "ratio": short(found.ratio),
        "fitted_overhead_s": short(found.fitted_overhead_s),
    }


# ---- one thing changed at a time -----------------------------------------------------------------------


def reasons_part(findings: Findings) -> StudyPart | None:
    """Magnus's gains with one thing changed; None where that is not run."""
    changed = findings.scope.changed()
    if not changed:
        return None
    plain = [Point(load=point.load) for point in next(iter(changed.values()))]
    rows: list[list[Value]] = []
    for name, points in {"as it stands": plain, **changed}.items():
        for point in points:
            gains = [
                findings.gain(point, MAGNUS, base, GAINS[key])
                for base in (VS, CCB)
                for key in ("throughput", "mean_rt_cut")
            ]
            own = [
                findings.mean(point, MAGNUS, number(key))
                for key in ("mean_rt_s", "mean_batch", "length_rmse")
            ]
            rows.append([name, f"{point.load:g}", *gains, *own])
    headings = [
        f"{GAINS[key].heading}, {base}" for base in (VS, CCB) for key in ("throughput", "mean_rt_cut")
    ]
    table = StudyTable(
        name="reasons",
        title="Gains of magnus with one thing changed",
        measured_on=SIMULATED,
        headings=[
            "changed",
            "load",
            *headings,
            "mean response time, s",
            "mean batch",
            "RMSE of lengths, tokens",
        ],
        rows=rows,
        note="Loads are of what vs gets through on the engine as changed. Not in the paper.",
        keys=2,
    )
    return StudyPart(
        title="Where it differs from the paper, and why", text=_said_of_reasons(findings), tables=[table]
    )


def _said_of_reasons(findings: Findings) -> list[str]:
    """Of the highest load, each with the numbers it is read from."""
    changed = findings.scope.changed()
    load = max(point.load for points in changed.values() for point in points)

    def gains(base: str, change: Change) -> str:
        point = Point(load=load, change=change)
        more, shorter = (
            findings.gain(point, MAGNUS, base, GAINS[key]) for key in ("throughput", "mean_rt_cut")
        )
        return f"{more or 0.0:+.0%} requests/s and {-(shorter or 0.0):+.0%} response time"

    others = "; ".join(f"{name}: {gains(VS, points[0].change)}" for name, points in changed.items())
    beside = "; ".join(f"{name}: {gains(CCB, points[0].change)}" for name, points in changed.items())
    return [
        f"Over vs at load {load:g}: {gains(VS, UNCHANGED)} as it stands; {others}.",
        f"Over ccb at load {load:g}: {gains(CCB, UNCHANGED)} as it stands; {beside}.",
        _said_of_memory(findings, load, changed),
    ]


def _said_of_memory(findings: Findings, load: float, changed: dict[str, list[Point]]) -> str:
    outputs = [row.output_tokens for task in load_tasks(findings.scope.source) for row in task.workload]
    plain = Point(load=load)
    held = "; ".join(
        f"{name}: {findings.mean(Point(load=load, change=points[0].change), MAGNUS, number('oom')) or 0.0:.0f}"
        for name, points in changed.items()
    )
    return (
        f"An answer has {fmean(outputs):.0f} tokens in the mean, so that a batch held by memory alone has "
        f"{findings.mean(plain, MAGNUS, number('mean_batch')) or 0.0:.0f} members. Memory is planned to the last token "
        "for the longest answer that is predicted; a batch that outgrows it loses its work. Batches that did at load "
        f"{load:g}: {findings.mean(plain, MAGNUS, number('oom')) or 0.0:.0f} as it stands; {held}."
    )
