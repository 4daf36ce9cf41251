"""What the law of step times says of the steps of the real runs of `bench/fidelity.py`."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import fsum
from typing import Any

from headway.core.batch_shape import BatchShape
from headway.predict.calibration import Calibration
from headway.predict.residuals import quantile
from headway.predict.step_fit import fit_step_time

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
    residuals = calibration.residuals
    report["noise"] = {"mean": fsum(map(sum, pairwise(residuals))) / 2 / (len(residuals) - 1)}
    return report


def own_calibration(calibration: Calibration, rows: Sequence[Row]) -> Calibration:
    """The calibration with the law fitted to these steps, no noise, and their total time to the point."""
    measured = [(BatchShape(**row["shape"]), row["seconds"]) for row in rows]
    random.Random(0).shuffle(measured)
    law = fit_step_time(measured).law
    mean = sum(seconds for _, seconds in measured) / sum(law.step_s(shape) for shape, _ in measured)
    return replace(calibration, step=law, host_s=0.0, residuals=(mean,))


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
