"""What the law of step times says of the steps of the real runs of `bench/fidelity.py`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import fsum
from statistics import fmean
from typing import Any

from headway.core.batch_shape import BatchShape
from headway.predict.calibration import Calibration
from headway.predict.residuals import quantile

Row = dict[str, Any]
"""A step of a real run: `run`, `shape`, `seconds`, `gap_s`."""


def steps_report(rows: Sequence[Row], calibration: Calibration) -> dict[str, dict[str, float]]:
    """By kind of step: how many, seconds measured, measured over predicted (`in_all`, and its quantiles).

    `gaps` is what the loop spent between steps with work at hand, which no step's time holds. `noise` is the
    mean of what the simulator's clock draws: it should be what `in_all` is over all steps.
    """
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        shape = BatchShape(**row["shape"])
        pairs[shape.kind].append((row["seconds"], calibration.step.step_s(shape) + calibration.host_s))
    report = {kind: _ratios(found) for kind, found in pairs.items()}
    report["all"] = _ratios([pair for found in pairs.values() for pair in found])
    gaps = sorted(row["gap_s"] for row in rows if row["gap_s"] is not None)
    report["gaps"] = {
        "steps": len(gaps),
        "share": sum(gaps) / report["all"]["seconds"],
        "median_s": quantile(gaps, 0.5),
        "p99_s": quantile(gaps, 0.99),
    }
    report["noise"] = {"mean": mean_noise(calibration)}
    return report


def at_speed_of(calibration: Calibration, rows: Sequence[Row]) -> Calibration:
    """The same costs, all faster or slower by one factor: that by which these steps took as long in all as they did.

    What else a step's time goes by stays as it was profiled, and so does the noise.
    """
    shapes = [BatchShape(**row["shape"]) for row in rows]
    device_s = mean_noise(calibration) * fsum(map(calibration.step.step_s, shapes))
    host_s = fsum(calibration.host_s + calibration.host_job_s * shape.num_jobs for shape in shapes)
    factor = fsum(row["seconds"] for row in rows) / (device_s + host_s)
    return replace(
        calibration,
        host_s=factor * calibration.host_s,
        host_job_s=factor * calibration.host_job_s,
        residuals=tuple(factor * residual for residual in calibration.residuals),
    )


def mean_noise(calibration: Calibration) -> float:
    """The mean of what the simulator's clock draws."""
    residuals = calibration.residuals
    return fmean(map(fmean, pairwise(residuals))) if len(residuals) > 1 else residuals[0]


def _ratios(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    ordered = sorted(measured_s / predicted_s for measured_s, predicted_s in pairs)
    measured_s = sum(measured for measured, _ in pairs)
    return {
        "steps": len(pairs),
        "seconds": measured_s,
        "in_all": measured_s / sum(predicted for _, predicted in pairs),
        "p10": quantile(ordered, 0.1),
        "median": quantile(ordered, 0.5),
        "p90": quantile(ordered, 0.9),
    }
