"""One run of Ascendra's experiments: decided by plain data, what it came to, and where that is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from headway.core.record import Record
from headway.core.slo import Slo
from headway.errors import HeadwayError
from headway.lab.kept_runs import Kept, release
from headway.lab.policy_choice import policy_factory
from headway.lab.simulation import fingerprint
from headway.lab.stream import Stream
from headway.predict.calibration import Calibration
from headway.predict.hardware import calibration
from headway.predict.known_models import model_shape
from headway.routing.pools import pool_of
from headway.sim.simulation import Policies, Result, System, simulate
from headway.traces import TraceRequest
from headway_reproduce.ascendra.errors import StepErrors
from headway_reproduce.ascendra.measures import AscendraResult, PoolUse, measure
from headway_reproduce.ascendra.setting import HARDWARE, UNCHANGED, Case, Change, Service

FILE = "ascendra-runs.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendraRun:
    """All that decides one run.

    `count` requests in Poisson arrivals at `rate_rps`, 0 for all at once. `slo_scale` is a factor on both targets.
    `seed` draws the workload anew, and the noise of the clock. With `errors` predicted step times are held against
    what steps took.
    """

    case: Case
    service: Service
    rate_rps: float
    count: int
    seed: int
    slo_scale: float = 1.0
    change: Change = UNCHANGED
    errors: bool = False

    @property
    def slo(self) -> Slo:
        """The targets of every request."""
        slo, scale = self.case.slo, self.slo_scale
        assert slo.ttft_s is not None
        assert slo.tbt_s is not None
        return Slo(ttft_s=scale * slo.ttft_s, tbt_s=scale * self.change.tbt_factor * slo.tbt_s)

    def trace(self) -> str:
        """The workload as `headway simulate --trace` takes it."""
        law = self.case.data.law
        arrivals = f"poisson:rate={self.rate_rps:.6g}" if self.rate_rps else "at-once"
        return f"gen:{arrivals}/input={law}/output={law}/count={self.count}"

    def digest(self) -> str:
        """As `Digested.digest`."""
        said = [release(), _fingerprint(self.case.model.name, self.change), *sorted(asdict(self).items())]
        return sha256(repr(said).encode()).hexdigest()


def simulate_ascendra(run: AscendraRun) -> AscendraResult:
    """Simulate one run; an error raised on purpose names it. Holds its records in memory."""
    records: list[Record] = []
    requests = _requests(run.trace(), run.slo, run.seed)
    policies, errors = policies_of(run.service, requests), StepErrors()
    try:
        result = simulate(
            requests,
            errors.following(policies) if run.errors else policies,
            system_of(run),
            on_record=records.append,
            max_output_tokens=run.case.data.longest_output,
            seed=run.seed,
            watch=errors.stepped if run.errors else None,
        )
    except HeadwayError as error:
        where = f"{run.service.name}, {run.case}, {run.rate_rps:g} req/s, seed {run.seed}"
        raise type(error)(f"{where}: {error}") from error
    return replace(measure(records, _use(result)), step_errors=errors.by_minute())


def system_of(run: AscendraRun) -> System:
    """What serves."""
    service, limits = run.service, run.case.model.limits()
    pools = {engines.pool: engines.count for engines in service.engines if engines.pool}
    return System(
        limits=replace(limits, num_blocks=int(run.change.kv_share * limits.num_blocks)),
        calibration=costs(run.case.model.name, run.change),
        instances=service.instances,
        router=service.router,
        pools=pools or None,
    )


def policies_of(service: Service, requests: Sequence[TraceRequest]) -> Policies:
    """What makes the policies of each pool, or of all instances."""
    found = {
        engines.pool: policy_factory(engines.policy, engines.parts, requests) for engines in service.engines
    }
    return found.get("", found)


def _use(result: Result) -> dict[str, PoolUse]:
    """How busy the instances of each pool were, from the first arrival to the last output."""
    busy_s: dict[str, list[float]] = {}
    for name, totals in result.totals.items():
        busy_s.setdefault(pool_of(name), []).append(totals.busy_s)
    return {
        pool: PoolUse(instances=len(found), busy_share=sum(found) / (len(found) * result.end_s))
        for pool, found in busy_s.items()
    }


@lru_cache(maxsize=2)
def _requests(trace: str, slo: Slo, seed: int) -> list[TraceRequest]:
    return Stream(trace, slo=slo).requests(seed)


@lru_cache(maxsize=16)
def costs(model: str, change: Change = UNCHANGED) -> Calibration:
    """What an instance costs."""
    found = calibration(HARDWARE, model_shape(model))
    return replace(found, host_s=found.host_s + change.more_host_s)


@lru_cache(maxsize=16)
def _fingerprint(model: str, change: Change) -> str:
    return fingerprint(costs(model, change))


@dataclass(slots=True)
class KeptAscendraRuns(Kept[AscendraRun, AscendraResult]):
    """Runs that are done, in DIR/ascendra-runs.jsonl."""

    file: str = FILE

    @classmethod
    def read(cls, root: Path) -> KeptAscendraRuns:
        """What a folder holds. Raises ConfigError if the file holds anything else or cannot be read."""
        kept = cls(root)
        kept.load(AscendraResult)
        return kept
