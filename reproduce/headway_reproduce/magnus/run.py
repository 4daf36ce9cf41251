"""One run of Magnus's experiments: decided by plain data, what it came to, and where that is kept."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from headway.lab.kept_runs import Kept, release
from headway.lab.simulation import fingerprint
from headway.predict.calibration import Calibration
from headway_reproduce.magnus.data import DataSource, data_digest
from headway_reproduce.magnus.engine import engine_costs, toy
from headway_reproduce.magnus.setting import (
    PHI,
    TODAY,
    VS,
    VSQ,
)

FILE = "magnus-runs.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What differs from the paper's setting, to find the reason of a figure (ours).

    `true_lengths` in place of predicted ones; a predictor that never learns (`learns`); an engine without the fitted
    overhead, or whose cache is not copied; batches of `max_batch` at most; answers planned `safety` times as long as
    predicted.
    """

    true_lengths: bool = False
    learns: bool = True
    overhead: bool = True
    copies: bool = True
    max_batch: int | None = None
    safety: float = 1.0


UNCHANGED = Change()


@dataclass(frozen=True, slots=True, kw_only=True)
class MagnusRun:
    """All that decides one run; `rate_rps` 0 is all requests at once."""

    source: DataSource
    policy: str
    seed: int
    rate_rps: float
    phi: int = PHI
    change: Change = UNCHANGED

    def digest(self) -> str:
        """As `Digested.digest`; rows are told apart by what they say, not where they lie."""
        plain = asdict(replace(self, source=DataSource()))
        said = [
            release(),
            data_digest(self.source),
            _fingerprint(self.policy, self.change),
            *sorted(plain.items()),
        ]
        return sha256(repr(said).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class MagnusResult:
    """What a run came to.

    Times are of finished requests, from arrival to the whole answer. `valid_tps` counts tokens of answers,
    `total_tps` those too that finished members went on producing. `oom` batches ran out of memory. Errors are root
    mean squares, of lengths as they were predicted at arrival and of batch times; None where nothing is predicted.
    `join_us` and `choose_us` are this machine's time for putting a request into a batch and for choosing one.
    """

    requests: int
    finished: int
    throughput_rps: float
    mean_rt_s: float
    p95_rt_s: float
    valid_tps: float
    total_tps: float
    oom: int = 0
    mean_batch: float | None = None
    length_rmse: float | None = None
    time_rmse_s: float | None = None
    refits: int = 0
    join_us: float | None = None
    choose_us: float | None = None


@dataclass(slots=True)
class KeptMagnusRuns(Kept[MagnusRun, MagnusResult]):
    """Runs that are done, in DIR/magnus-runs.jsonl."""

    file: str = FILE

    @classmethod
    def read(cls, root: Path) -> KeptMagnusRuns:
        """What a folder holds. Raises ConfigError if the file holds anything else or cannot be read."""
        kept = cls(root)
        kept.load(MagnusResult)
        return kept


@lru_cache(maxsize=8)
def run_costs(policy: str, change: Change) -> Calibration:
    """What an instance costs under a policy, with what is changed."""
    copies = change.copies and policy != TODAY
    overhead_s = toy(copies=change.copies).fitted_overhead_s if change.overhead else 0.0
    return engine_costs(VSQ if policy == VSQ else VS, overhead_s, copies=copies)


@lru_cache(maxsize=32)
def _fingerprint(policy: str, change: Change) -> str:
    return fingerprint(run_costs(policy, change))
