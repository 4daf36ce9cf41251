"""What each step of Magnus adds (Fig. 10 and 11), and Magnus beside vLLM as it is now."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from headway.results.study import StudyPart, StudyTable, Value
from headway_reproduce.magnus.findings import GAINS, Findings, Range
from headway_reproduce.magnus.rates import LOAD, numbers_at, rate_chart
from headway_reproduce.magnus.scope import Point
from headway_reproduce.magnus.setting import (
    MAGNUS,
    SIMULATED,
    STEPS,
    TODAY,
)
from headway_reproduce.study_findings import short

# ---- step by step --------------------------------------------------------------------------------------


def ablation_part(findings: Findings) -> StudyPart:
    """What each step adds to the one before."""
    points = findings.scope.rates()
    rows: list[list[Value]] = [
        [
            f"{point.load:g}",
            f"{before} to {after}",
            *_gains(findings, point, after, before),
        ]
        for point in points
        for before, after in pairwise(STEPS)
    ]
    table = StudyTable(
        name="ablation",
        title="What each step adds to the one before (Fig. 10 and 11)",
        measured_on=SIMULATED,
        headings=[LOAD, "step", *(gain.heading for gain in GAINS.values())],
        rows=rows,
        note="glp: batches by predicted length, of 7 at most; abp: without that cap; magnus: the batch that has waited "
        "longest for its length goes first. In the paper every step is a gain.",
        keys=2,
        decimals=3,
    )
    return StudyPart(
        title="Step by step (Fig. 10 and 11)",
        text=[_said_of_step(findings, points, *step) for step in pairwise(STEPS)],
        tables=[table],
        charts=[
            rate_chart(findings, points, STEPS, key, f"ablation-{key.replace('_', '-')}")
            for key in ("throughput_rps", "mean_rt_s")
        ],
    )


def _gains(findings: Findings, point: Point, policy: str, over: str) -> list[Value]:
    return [findings.gain(point, policy, over, gain) for gain in GAINS.values()]


def _said_of_step(findings: Findings, points: Sequence[Point], before: str, after: str) -> str:
    more, shorter = (
        _span([findings.gain(point, after, before, GAINS[key]) for point in points])
        for key in ("throughput", "mean_rt_cut")
    )
    return f"From {before} to {after}: requests/s {_range(more)} more, mean response time {_range(shorter)} shorter."


def _span(values: Sequence[float | None]) -> Range | None:
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known else None


def _range(found: Range | None) -> str:
    return "not measured" if found is None else f"{found[0]:.1%} to {found[1]:.1%}"


# ---- vLLM as it is now ---------------------------------------------------------------------------------


def today_part(findings: Findings) -> StudyPart:
    """Whether batching by predicted length still pays where requests come and go one by one."""
    points = findings.scope.rates()
    wins = sum((_cut(findings, point) or 0.0) > 0 for point in points)
    verdict = (
        f"{TODAY} answers sooner than magnus at {len(points) - wins} of {len(points)} rates. Continuous batching over "
        "paged memory has neither padding nor members that wait for the longest, and takes in whoever comes at the "
        "next step: batches by predicted length are for engines that cannot do so."
    )
    rows: list[list[Value]] = [
        [f"{point.load:g}", *_gains(findings, point, MAGNUS, TODAY)] for point in points
    ]
    table = StudyTable(
        name="vs-vllm-today",
        title=f"Gains of magnus over {TODAY} on the same instances",
        measured_on=SIMULATED,
        headings=[LOAD, *(gain.heading for gain in GAINS.values())],
        rows=rows,
        note="Less than 0 is worse. Same steps, same memory, same overhead a step; no copies of the cache, which vLLM "
        "writes in place. Not in the paper.",
    )
    return StudyPart(title="Against vLLM as it is now", text=[verdict], tables=[table])


def _cut(findings: Findings, point: Point) -> float | None:
    return findings.gain(point, MAGNUS, TODAY, GAINS["mean_rt_cut"])


# ---- what scripts read ---------------------------------------------------------------------------------


def today_data(findings: Findings) -> dict[str, object]:
    """Load -> vLLM's own numbers, and magnus's gains over it."""
    return {
        f"{point.load:g}": {
            **numbers_at(findings, point, TODAY),
            "gains": {key: short(findings.gain(point, MAGNUS, TODAY, gain)) for key, gain in GAINS.items()},
        }
        for point in findings.scope.rates()
    }


def ablation_data(findings: Findings) -> dict[str, object]:
    """Step -> least and largest gain over the rates."""
    points = findings.scope.rates()
    return {
        f"{before} to {after}": {
            key: _short(_span([findings.gain(point, after, before, gain) for point in points]))
            for key, gain in GAINS.items()
        }
        for before, after in pairwise(STEPS)
    }


def _short(found: Range | None) -> list[float | None] | None:
    return None if found is None else [short(value) for value in found]
