"""What `bench/fidelity.py` says of a cell: one policy at one load, real runs beside simulated ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from statistics import fmean
from typing import Any

from scipy.special import stdtrit

from headway.core.record import Outcome, Record
from headway.results import summarize

METRICS = {"mean_jct_s": 0.03, "mean_ttft_s": 0.08, "p99_jct_s": 0.08}
"""Summary key -> the error that is aimed at, with the machine at the speed it had."""

Values = dict[str, float]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a stream, real or simulated: its metrics, and what it took."""

    values: Values
    counts: Values
    records: Sequence[Record] = ()


def run_of(records: Sequence[Record], steps: int) -> Run:
    """The run that left these records, with so many steps that had work."""
    summary = summarize(records).to_dict()
    return Run(
        values={key: float(summary[key] or 0.0) for key in METRICS},
        counts={
            "steps": steps,
            "preemptions": sum(record.preemptions for record in records),
            "swapped_blocks": sum(record.swapped_blocks for record in records),
            "handed_off": sum(record.outcome is Outcome.HANDED_OFF for record in records),
            "expired": sum(record.outcome is Outcome.EXPIRED for record in records),
        },
        records=records,
    )


def mean_run(runs: Sequence[Run]) -> Run:
    """One stream simulated several times, as one run; its records are the first one's."""
    values, counts = _means([run.values for run in runs]), _means([run.counts for run in runs])
    return Run(values, counts, runs[0].records)


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy at one load: real runs, a stream each, and the same streams simulated.

    `simulated` goes by the profile's costs, `own` by those at the speed that the machine had in each real run.
    """

    real: Sequence[Run]
    simulated: Sequence[Run]
    own: Sequence[Run]

    def to_dict(self) -> dict[str, Any]:
        """Means over the streams, and errors of these, as fractions."""
        return {
            "real": _means([run.values for run in self.real]),
            "simulated": _means([run.values for run in self.simulated]),
            "error": self._errors(self.simulated),
            "error_at_own_speed": self._errors(self.own),
            "half_width": {key: self._half_width(key) for key in METRICS},
            "counts": {
                "real": _means([run.counts for run in self.real]),
                "simulated": _means([run.counts for run in self.own]),
            },
        }

    def _errors(self, simulated: Sequence[Run]) -> Values:
        found, real = _means([run.values for run in simulated]), _means([run.values for run in self.real])
        return {key: found[key] / real[key] - 1 for key in METRICS}

    def _half_width(self, key: str) -> float | None:
        """Of the 95 % interval around the error at own speed, streams being drawn at random; None of one stream.

        That of a ratio of means, its deviations taken as normal: Student's t.
        """
        count = len(self.real)
        if count < 2:
            return None
        pairs = [(own.values[key], run.values[key]) for own, run in zip(self.own, self.real, strict=True)]
        real = fmean(value for _, value in pairs)
        ratio = fmean(own for own, _ in pairs) / real
        variance = fsum((own - ratio * value) ** 2 for own, value in pairs) / (count - 1)
        return float(stdtrit(count - 1, 0.975)) * sqrt(variance / count) / real


def _means(runs: Sequence[Values]) -> Values:
    return {key: fmean(run[key] for run in runs) for key in runs[0]}


def missed(cells: dict[str, dict[str, Any]]) -> list[str]:
    """Cells and metrics whose error at the machine's own speed is larger than its aim."""
    return [
        f"{policy} at {load}: {key}"
        for policy, row in cells.items()
        for load, cell in row.items()
        for key, aim in METRICS.items()
        if abs(cell["error_at_own_speed"][key]) > aim
    ]
