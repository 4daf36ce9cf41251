"""What `bench/fidelity.py` says of a cell: one policy at one load, real runs beside simulated ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headway.core.record import Outcome, Record
from headway.results import summarize

METRICS = {"mean_jct_s": 0.03, "mean_ttft_s": 0.08, "p99_jct_s": 0.08}
"""Summary key -> the error that is aimed at."""

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


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy at one load: every real run, every simulated one, and what is simulated at its speed.

    `own` holds, for each real run, what is simulated with the law fitted to the steps of that very run.
    """

    real: Sequence[Run]
    simulated: Sequence[Run]
    own: Sequence[Run]

    def to_dict(self) -> dict[str, Any]:
        """Means, errors and spreads, the latter as fractions."""
        runs = [run.values for run in self.real]
        real, simulated = _means(runs), _means([run.values for run in self.simulated])
        return {
            "real": real,
            "simulated": simulated,
            "error": {key: simulated[key] / real[key] - 1 for key in METRICS},
            "spread": {key: _spread([run[key] for run in runs]) for key in METRICS},
            "counts": {
                "real": _means([run.counts for run in self.real]),
                "simulated": _means([run.counts for run in self.simulated]),
            },
            "error_at_own_speed": {key: self._worst_at_own_speed(key) for key in METRICS},
        }

    def _worst_at_own_speed(self, key: str) -> float:
        """The error of the run that is farthest from its own simulated one."""
        pairs = zip(self.own, self.real, strict=True)
        return max((own.values[key] / run.values[key] - 1 for own, run in pairs), key=abs)


def _means(runs: Sequence[Values]) -> Values:
    return {key: sum(run[key] for run in runs) / len(runs) for key in runs[0]}


def _spread(values: Sequence[float]) -> float:
    return (max(values) - min(values)) / (sum(values) / len(values))


def missed(cells: dict[str, dict[str, Any]]) -> list[str]:
    """Cells and metrics whose error is larger than its aim."""
    return [
        f"{policy} at {load}: {key}"
        for policy, row in cells.items()
        for load, cell in row.items()
        for key, aim in METRICS.items()
        if abs(cell["error"][key]) > aim
    ]
